-- SPDX-License-Identifier: Apache-2.0
SELECT name FROM {{schema}}.keyspaces ORDER BY name
