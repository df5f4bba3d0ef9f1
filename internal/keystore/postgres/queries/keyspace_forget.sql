-- SPDX-License-Identifier: Apache-2.0
DELETE FROM {{schema}}.keyspaces WHERE name = $1
