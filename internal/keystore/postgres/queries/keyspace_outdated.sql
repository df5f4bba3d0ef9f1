-- SPDX-License-Identifier: Apache-2.0
-- Keyspaces whose functions are older than migration $1.
SELECT name FROM {{schema}}.keyspaces WHERE version < $1 ORDER BY name
