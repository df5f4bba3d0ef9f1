-- SPDX-License-Identifier: Apache-2.0
SELECT coalesce(outcome, 0), seed, tombstone, status, header, body, lease_remaining, since
FROM {{schema}}.{{reserve}}($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
