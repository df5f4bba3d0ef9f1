-- SPDX-License-Identifier: Apache-2.0
-- Keeps partition $1 (table $2) retiring until this transaction ends.
SELECT FROM {{schema}}.partitions
WHERE relation = $1 AND oid = $2 AND phase = 'retiring' AND honoured_until <= {{schema}}.now_()
FOR UPDATE
