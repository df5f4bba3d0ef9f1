-- SPDX-License-Identifier: Apache-2.0
-- The tables in schema $2 that were partitions of keyspace $1, were detached by us, and are not dropped yet.
SELECT c.relname::text
FROM {{schema}}.partitions r
JOIN pg_class c ON c.oid = r.oid AND c.relname = r.relation AND c.relnamespace = to_regnamespace(quote_ident($2))
WHERE r.keyspace = $1 AND r.phase = 'retiring' AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid)
