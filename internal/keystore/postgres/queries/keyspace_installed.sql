-- SPDX-License-Identifier: Apache-2.0
UPDATE {{schema}}.keyspaces SET version = $2 WHERE name = $1
