-- SPDX-License-Identifier: Apache-2.0
SELECT claim, version FROM {{schema}}.keyspaces WHERE name = $1
