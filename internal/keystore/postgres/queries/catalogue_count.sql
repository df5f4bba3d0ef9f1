-- SPDX-License-Identifier: Apache-2.0
-- Entries, those without a recorded answer, and the latest expiry.
SELECT count(*), count(*) FILTER (WHERE state <> {{completed}}), max(expires_at)
FROM {{schema}}.{{partition}}
