-- SPDX-License-Identifier: Apache-2.0
-- A retiring partition $1 (table $2) takes entries again.
UPDATE {{schema}}.partitions
SET phase = 'open', seal = NULL, honoured_until = NULL, entries = NULL, unsettled = NULL
WHERE relation = $1 AND oid = $2 AND phase = 'retiring'
