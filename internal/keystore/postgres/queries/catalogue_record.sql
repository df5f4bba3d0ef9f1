-- SPDX-License-Identifier: Apache-2.0
-- Our record of partition $2 of keyspace $1, a table in schema $3 from bucket $4 to $5, in phase $6: new, or anew. Returns the seal to count under.
-- Records of tables that somebody else has dropped go.
WITH gone AS (
    DELETE FROM {{schema}}.partitions r
    WHERE r.keyspace = $1 AND r.relation <> $2 AND NOT EXISTS (SELECT FROM pg_class WHERE oid = r.oid)
)
INSERT INTO {{schema}}.partitions AS p (keyspace, relation, oid, from_bucket, to_bucket, phase, seal, noted_at, noted_by)
SELECT $1, $2, c.oid, $4, $5, $6, gen_random_uuid(), {{schema}}.now_(), pg_current_xact_id()
FROM pg_class c
WHERE c.relname = $2 AND c.relnamespace = to_regnamespace(quote_ident($3))
ON CONFLICT (relation) DO UPDATE SET
    keyspace = excluded.keyspace, oid = excluded.oid, from_bucket = excluded.from_bucket, to_bucket = excluded.to_bucket,
    phase = excluded.phase, seal = excluded.seal, honoured_until = NULL, entries = NULL, unsettled = NULL,
    noted_at = excluded.noted_at, noted_by = excluded.noted_by
WHERE p.phase <> 'retiring' OR p.oid <> excluded.oid
RETURNING seal
