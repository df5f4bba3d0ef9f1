-- SPDX-License-Identifier: Apache-2.0
-- Whether any of the entries (clients $1, keys $2) is still there.
SELECT EXISTS (
    SELECT FROM {{schema}}.{{partition}} e
    JOIN unnest($1::text[], $2::text[]) AS given (client, key) ON e.client = given.client AND e.key = given.key
)
