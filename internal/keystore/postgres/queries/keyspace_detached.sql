-- SPDX-License-Identifier: Apache-2.0
-- Partitions of keyspace $1 that retention has detached and not yet dropped.
SELECT c.oid::regclass::text
FROM {{schema}}.partitions p
JOIN pg_class c ON c.oid = p.oid AND c.relname = p.relation
WHERE p.keyspace = $1 AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid)
