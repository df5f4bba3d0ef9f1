-- SPDX-License-Identifier: Apache-2.0
-- At most $1 entries whose outcome is unknown, the oldest first.
SELECT
    t.client, t.key, t.state, t.route, t.attempts, t.token, t.holder, t.bucket, t.reserved_at, t.expires_at,
    coalesce(h.expires_at > c.now_at, false), t.tombstone, t.status, t.header, t.body
FROM (SELECT {{schema}}.now_() AS now_at OFFSET 0) c
JOIN {{schema}}.{{parent}} t ON true
LEFT JOIN {{schema}}.holders h ON h.holder = t.holder AND t.state = {{reserved}}
WHERE t.state <> {{completed}} AND t.expires_at > c.now_at AND (h.expires_at > c.now_at) IS NOT TRUE
ORDER BY t.reserved_at, t.client, t.key
LIMIT $1
