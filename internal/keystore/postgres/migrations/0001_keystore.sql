-- SPDX-License-Identifier: Apache-2.0
-- Why: what every keyspace needs: the registry, the clock, the holders and their leases. Tables and functions of one keyspace are made with it.
-- Locks: none on tables in use; everything here is new.

CREATE TABLE {{schema}}.keyspaces (
    name          text COLLATE "C" PRIMARY KEY,
    -- The parent table of the keyspace's daily partitions.
    relation      text COLLATE "C" NOT NULL UNIQUE,
    -- The one policy that may use the keyspace; empty: those that name it share it.
    claim         text NOT NULL,
    -- The migration that the keyspace's functions were last made under.
    version       integer NOT NULL,
    -- No entry was ever written to a later bucket: reserve does not look beyond it, and takes what is there for absent. Where there are entries already,
    -- such a column can never come with this default, only with the newest bucket that has one, under a lock that keeps writers out.
    newest_bucket timestamptz NOT NULL DEFAULT '-infinity',
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One row per sidecar process, renewed every few seconds: it has to fit HOT updates, and no index but the key.
CREATE TABLE {{schema}}.holders (
    holder     uuid PRIMARY KEY,
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The answer to reserve. Durations are in microseconds.
CREATE TYPE {{schema}}.decision AS (
    outcome         integer,
    seed            uuid,
    tombstone       text,
    status          integer,
    header          bytea,
    body            bytea,
    lease_remaining bigint,
    since           bigint
);

-- The answer to reserve_many: a decision, and the place of its reservation in the question, from 1.
CREATE TYPE {{schema}}.placed_decision AS (
    place           integer,
    outcome         integer,
    seed            uuid,
    tombstone       text,
    status          integer,
    header          bytea,
    body            bytea,
    lease_remaining bigint,
    since           bigint
);

-- The only clock that decides anything. Tests replace it; the planner puts its body in the place of each call.
CREATE FUNCTION {{schema}}.now_() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE
AS 'SELECT pg_catalog.clock_timestamp()';

CREATE FUNCTION {{schema}}.microseconds(d interval) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS 'SELECT (extract(epoch FROM d) * 1000000)::bigint';

-- The bucket that an entry made at now_at is kept in: that of the day; where its partition is missing, the newest there is.
CREATE FUNCTION {{schema}}.bucket_for(parent regclass, now_at timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
DECLARE
    found timestamptz;
BEGIN
    SELECT coalesce(max(b.lower) FILTER (WHERE b.lower <= now_at AND now_at < b.upper), max(b.lower)) INTO found
    FROM (
        SELECT bound[1]::timestamptz AS lower, bound[2]::timestamptz AS upper
        FROM pg_inherits i
        JOIN pg_class c ON c.oid = i.inhrelid,
        regexp_match(pg_get_expr(c.relpartbound, c.oid), '^FOR VALUES FROM \(''(\d[^'']*)''\) TO \(''(\d[^'']*)''\)$') AS bound
        WHERE i.inhparent = parent AND NOT i.inhdetachpending
    ) b;
    IF found IS NULL THEN
        RAISE EXCEPTION 'keyspace has no partition' USING ERRCODE = 'IK002';
    END IF;
    RETURN found;
END
$$;

-- Refuses what cannot keep the guarantee, and makes the transaction durable whatever the role's default says.
-- Only under READ COMMITTED does a statement see what the previous owner of the entry's lock has committed.
-- It returns true, so that it can be called in an expression: PERFORM costs several times as much.
CREATE FUNCTION {{schema}}.enter() RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'isolation level must be read committed' USING ERRCODE = 'IK001';
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    RETURN true;
END
$$;

-- Makes sure that a holder which gets a reservation has a lease: the one until held_until, or a new one. Holders renew theirs long before half of it is
-- over, so this seldom writes.
CREATE FUNCTION {{schema}}.hold(p_holder uuid, p_lease interval, now_at timestamptz, held_until timestamptz) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF held_until > now_at + p_lease / 2 THEN
        RETURN true;
    END IF;
    INSERT INTO {{schema}}.holders AS h (holder, expires_at) VALUES (p_holder, now_at + p_lease)
    ON CONFLICT (holder) DO UPDATE SET expires_at = greatest(h.expires_at, excluded.expires_at);
    RETURN true;
END
$$;

-- A holder that has just begun takes away some of those that ended long ago.
CREATE FUNCTION {{schema}}.keep_alive(p_holder uuid, p_lease interval) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, {{schema}}, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
    now_at timestamptz;
BEGIN
    IF {{schema}}.enter() THEN
        now_at := {{schema}}.now_();
    END IF;
    UPDATE {{schema}}.holders h SET expires_at = greatest(h.expires_at, now_at + p_lease) WHERE h.holder = p_holder;
    IF FOUND THEN
        RETURN;
    END IF;
    INSERT INTO {{schema}}.holders AS h (holder, expires_at) VALUES (p_holder, now_at + p_lease)
    ON CONFLICT (holder) DO UPDATE SET expires_at = greatest(h.expires_at, excluded.expires_at);
    DELETE FROM {{schema}}.holders WHERE holder IN (
        SELECT h.holder FROM {{schema}}.holders h
        WHERE h.expires_at < now_at - interval '1 hour'
        LIMIT 1000 FOR UPDATE SKIP LOCKED
    );
END
$$;

CREATE FUNCTION {{schema}}.retire(p_holder uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, {{schema}}, pg_temp SET lock_timeout = '5s' AS $$
BEGIN
    PERFORM {{schema}}.enter();
    DELETE FROM {{schema}}.holders WHERE holder = p_holder;
END
$$;

REVOKE ALL ON FUNCTION
    {{schema}}.now_(), {{schema}}.microseconds(interval), {{schema}}.bucket_for(regclass, timestamptz), {{schema}}.enter(),
    {{schema}}.hold(uuid, interval, timestamptz, timestamptz),
    {{schema}}.keep_alive(uuid, interval), {{schema}}.retire(uuid)
FROM PUBLIC;
