-- SPDX-License-Identifier: Apache-2.0
-- The entries without a recorded answer.
SELECT coalesce(array_agg(client), '{}'), coalesce(array_agg(key), '{}')
FROM {{schema}}.{{partition}}
WHERE state <> {{completed}}
