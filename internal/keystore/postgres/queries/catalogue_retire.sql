-- SPDX-License-Identifier: Apache-2.0
-- From here on writes to partition $1 (table $2) are refused. Only when the count made under seal $3 holds, and nothing that it counted is honoured by
-- the server's own clock. Waits for transactions that are breaking the seal.
UPDATE {{schema}}.partitions
SET phase = 'retiring'
WHERE relation = $1 AND oid = $2 AND seal = $3 AND phase = 'sealed'
    AND honoured_until <= {{schema}}.now_() AND to_bucket < {{schema}}.now_()
