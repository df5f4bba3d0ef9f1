-- SPDX-License-Identifier: Apache-2.0
-- Why: consumers of messages record, in their own transactions, what they have taken.
-- Locks: none on tables in use; everything here is new.

-- The consumers that policies declare. keyspace is the name of their common keyspace of deliveries.
CREATE TABLE {{schema}}.consumers (
    keyspace text COLLATE "C" NOT NULL REFERENCES {{schema}}.keyspaces (name) ON DELETE CASCADE,
    name     text COLLATE "C" NOT NULL,
    -- How long a delivery is remembered.
    lifetime interval NOT NULL,
    PRIMARY KEY (keyspace, name)
);

-- first_delivery records, in the caller's own transaction, that consumer takes the message: true, when nobody has yet. It waits for whoever is just about
-- to, and is true when he rolls back. The policy's keyspace is the one that declares the consumer.
CREATE FUNCTION {{schema}}.first_delivery(keyspace text, consumer text, message_id text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    relation text;
    first    boolean;
BEGIN
    IF message_id IS NULL OR octet_length(message_id) NOT BETWEEN 1 AND 1024 THEN
        RAISE EXCEPTION 'message id is not of 1 to 1024 bytes' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Pass what the sender made unique, such as its message id, and not the broker''s delivery tag.';
    END IF;
    SELECT k.relation INTO relation
    FROM {{schema}}.keyspaces k JOIN {{schema}}.consumers c ON c.keyspace = k.name
    WHERE k.name = first_delivery.keyspace || '/consumers' AND c.name = consumer;
    IF relation IS NULL THEN
        RAISE EXCEPTION 'consumer % of keyspace % is not declared', quote_nullable(consumer), quote_nullable(first_delivery.keyspace)
        USING ERRCODE = 'IK005', HINT = 'Name it in spec.consumers of the policy.';
    END IF;
    EXECUTE format('SELECT {{schema}}.%I($1, $2)', relation || '_deliver') INTO first USING consumer, message_id;
    RETURN first;
END
$$;

-- At the moment noted_at no transaction had noted_by, or an id beyond it: all that have are younger.
ALTER TABLE {{schema}}.partitions ADD COLUMN noted_at timestamptz, ADD COLUMN noted_by xid8;

-- probe_deliveries finds a delivery that the caller's snapshot is too old to see, at REPEATABLE READ and above: unique indexes do not go by snapshots. It
-- tries the message in every day that may hold one, and undoes that; one that is there makes it fail with a serialization failure.
--
-- What the snapshot does not see is of a transaction that is not older than the snapshot's xmin, and so of a day that is not earlier than the one when any
-- such was first possible; one day more is looked at for clocks that were set. While its day has no partition a delivery goes to the newest, which is the last
-- before a gap, or was then, a day ago.
CREATE FUNCTION {{schema}}.probe_deliveries(parent regclass, now_at timestamptz, client text, key text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
DECLARE
    since  timestamptz;
    day    timestamptz;
BEGIN
    SELECT date_trunc('day', max(p.noted_at), 'UTC') - interval '24 hours' INTO since
    FROM {{schema}}.partitions p WHERE p.noted_by <= pg_snapshot_xmin(pg_current_snapshot());
    FOR day IN
        WITH days AS (
            SELECT bound[1]::timestamptz AS lower
            FROM pg_inherits i
            JOIN pg_class c ON c.oid = i.inhrelid,
            regexp_match(pg_get_expr(c.relpartbound, c.oid), '^FOR VALUES FROM \(''(\d[^'']*)''\) TO') AS bound
            WHERE i.inhparent = parent
        )
        SELECT generate_series(
            coalesce(since, min(lower)), greatest(max(lower), date_trunc('day', now_at, 'UTC') + interval '24 hours'), interval '24 hours'
        ) FROM days
        UNION
        SELECT d.lower FROM days d WHERE NOT EXISTS (SELECT FROM days n WHERE n.lower = d.lower + interval '24 hours')
    LOOP
        BEGIN
            EXECUTE format('INSERT INTO %s (client, key, bucket, expires_at) VALUES ($1, $2, $3, $3) ON CONFLICT DO NOTHING', parent)
            USING client, key, day;
            RAISE EXCEPTION USING ERRCODE = 'IK000';
        EXCEPTION
            WHEN SQLSTATE 'IK000' THEN NULL; -- it is not there
            WHEN check_violation THEN NULL; -- the day has no partition
            WHEN object_not_in_prerequisite_state THEN NULL; -- the partition is being retired: nothing in it is honoured
        END;
    END LOOP;
END
$$;

REVOKE ALL ON FUNCTION
    {{schema}}.first_delivery(text, text, text), {{schema}}.probe_deliveries(regclass, timestamptz, text, text)
FROM PUBLIC;
