-- SPDX-License-Identifier: Apache-2.0
-- Removes those of the entries (clients $1, keys $2) that are not honoured: their window is over and no live holder has them reserved.
DELETE FROM {{schema}}.{{partition}} e
USING unnest($1::text[], $2::text[]) AS given (client, key)
WHERE e.client = given.client AND e.key = given.key AND e.expires_at <= {{schema}}.now_() AND NOT (
    e.state = {{reserved}}
    AND EXISTS (SELECT FROM {{schema}}.holders h WHERE h.holder = e.holder AND h.expires_at > {{schema}}.now_())
)
