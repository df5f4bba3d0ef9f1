-- SPDX-License-Identifier: Apache-2.0
-- The entry (client $1, key $2), when it is honoured.
SELECT
    t.client, t.key, t.state, t.route, t.attempts, t.token, t.holder, t.bucket, t.reserved_at, t.expires_at,
    coalesce(h.expires_at > c.now_at, false), t.tombstone, t.status, t.header, t.body
FROM (SELECT {{schema}}.now_() AS now_at OFFSET 0) c
JOIN {{schema}}.{{parent}} t ON true
LEFT JOIN {{schema}}.holders h ON h.holder = t.holder AND t.state = {{reserved}}
WHERE t.client = $1 AND t.key = $2 AND (t.expires_at > c.now_at OR h.expires_at > c.now_at)
