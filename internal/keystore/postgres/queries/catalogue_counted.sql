-- SPDX-License-Identifier: Apache-2.0
-- Records what was counted in partition $1 under seal $2, unless a write has broken the seal meanwhile.
UPDATE {{schema}}.partitions
SET honoured_until = greatest($3, to_bucket), entries = $4, unsettled = $5
WHERE relation = $1 AND seal = $2 AND phase = 'sealed'
