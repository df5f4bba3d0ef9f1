-- SPDX-License-Identifier: Apache-2.0
-- Everything that hangs, or hung, on the parents of one keyspace ($1), or of all (NULL). One row per partition; a keyspace without any has one row
-- without a partition. Bounds are read from the catalog, never from names. The caller has set DateStyle to ISO.
SELECT
    k.name,
    k.relation,
    part.relname::text,
    part.link,
    part.bound = 'DEFAULT',
    part.bounds[1]::timestamptz,
    part.bounds[2]::timestamptz,
    CASE
        WHEN part.relkind <> 'r' THEN 'it is not a plain table'
        WHEN part.relnamespace <> parent.relnamespace THEN 'it is in another schema'
        ELSE ''
    END,
    CASE
        WHEN r.phase IS NULL THEN 'open'
        WHEN r.phase = 'retiring' AND part.link <> 'attached' THEN r.phase
        WHEN EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = part.oid AND t.tgname = 'sealed' AND t.tgenabled IN ('O', 'A')) THEN r.phase
        ELSE 'open'
    END,
    r.honoured_until,
    coalesce(r.unsettled, 0),
    coalesce(r.entries, part.reltuples::bigint),
    coalesce(pg_relation_size(part.oid), 0) + coalesce(pg_relation_size(nullif(part.reltoastrelid, 0)), 0),
    {{schema}}.now_(),
    pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean
FROM {{schema}}.keyspaces k
JOIN pg_class parent ON parent.relname = k.relation AND parent.relnamespace = to_regnamespace(quote_ident($2))
LEFT JOIN LATERAL (
    SELECT
        c.oid, c.relname, c.relkind, c.relnamespace, c.reltuples, c.reltoastrelid,
        CASE WHEN i.inhdetachpending THEN 'pending' ELSE 'attached' END AS link,
        b.bound,
        regexp_match(b.bound, '^FOR VALUES FROM \(''(\d[^'']*)''\) TO \(''(\d[^'']*)''\)$') AS bounds
    FROM pg_inherits i
    JOIN pg_class c ON c.oid = i.inhrelid
    CROSS JOIN LATERAL (SELECT pg_get_expr(c.relpartbound, c.oid) AS bound OFFSET 0) b
    WHERE i.inhparent = parent.oid
    UNION ALL
    SELECT
        c.oid, c.relname, c.relkind, c.relnamespace, c.reltuples, c.reltoastrelid, 'detached', '', ARRAY[own.from_bucket::text, own.to_bucket::text]
    FROM {{schema}}.partitions own
    JOIN pg_class c ON c.oid = own.oid AND c.relname = own.relation AND c.relnamespace = parent.relnamespace
    WHERE own.keyspace = k.name AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid)
) part ON true
LEFT JOIN {{schema}}.partitions r ON r.relation = part.relname AND r.oid = part.oid AND r.keyspace = k.name
WHERE $1::text IS NULL OR k.name = $1
ORDER BY k.name, part.relname
