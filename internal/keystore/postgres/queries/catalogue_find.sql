-- SPDX-License-Identifier: Apache-2.0
-- What a step of keyspace $1 is about, as it is now: the table named $2 in schema $3, how it hangs on the parent, and our record of it.
SELECT
    c.oid,
    CASE WHEN i.inhrelid IS NULL THEN 'detached' WHEN i.inhdetachpending THEN 'pending' ELSE 'attached' END,
    coalesce(r.phase, 'open'),
    r.seal,
    coalesce(r.unsettled, 0)
FROM {{schema}}.keyspaces k
JOIN pg_class parent ON parent.relname = k.relation AND parent.relnamespace = to_regnamespace(quote_ident($3))
LEFT JOIN pg_class c ON c.relname = $2 AND c.relnamespace = parent.relnamespace
LEFT JOIN pg_inherits i ON i.inhrelid = c.oid AND i.inhparent = parent.oid
LEFT JOIN {{schema}}.partitions r ON r.relation = c.relname AND r.oid = c.oid AND r.keyspace = k.name
WHERE k.name = $1
