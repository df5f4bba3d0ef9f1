-- SPDX-License-Identifier: Apache-2.0
SELECT place, outcome, seed, tombstone, status, header, body, lease_remaining, since
FROM {{schema}}.{{reserve_many}}($1, $2, $3, $4, $5, $6, $7, $8)
