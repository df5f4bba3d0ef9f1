-- SPDX-License-Identifier: Apache-2.0
-- reserve is Store.Reserve. p_newest: today's partition is missing; the newest one will do.
--
-- Order matters. The lock comes first, so that no other call on the entry is between its look and its write. The clock comes second and the look
-- third: what is alive by an older clock and a newer look was alive. At most one row per entry exists in all partitions together, since a row
-- that is not honoured any more goes when its successor comes. Partitions beyond the newest bucket that was ever written to are left out; the clock
-- would not do to tell which those are, since it may have been ahead for a while.
--
-- Who holds the lock is about to change the entry, in a transaction that an app may keep open. What only reports need not wait for it: the look
-- shows what stands. What gives the reservation waits, and looks again. p_patience: 0: do not wait, the outcome is NULL then. 1: wait. 2: wait before
-- anything else, since the lock may be held by an earlier attempt of this very call, whose answer was lost.
CREATE OR REPLACE FUNCTION {{schema}}.{{reserve}}(
    p_client text, p_key text, p_fingerprint bytea, p_token uuid, p_holder uuid, p_lease interval, p_window interval, p_route text,
    p_take_over boolean, p_newest boolean, p_patience integer
) RETURNS {{schema}}.decision
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {{settings}} AS $$
DECLARE
    now_at      timestamptz;
    newest      timestamptz;
    bucket      timestamptz;
    e           record;
    alive_until timestamptz;
    held_until  timestamptz;
    held        boolean;
    live        boolean;
    locked      boolean;
    d           {{schema}}.decision;
BEGIN
    locked := {{schema}}.enter() AND pg_try_advisory_xact_lock({{lock}});
    LOOP
        now_at := {{schema}}.now_();
        SELECT k.newest_bucket, (SELECT h.expires_at FROM {{schema}}.holders h WHERE h.holder = p_holder)
        INTO newest, held_until
        FROM {{schema}}.keyspaces k WHERE k.relation = '{{relation}}';
        SELECT
            t.bucket, t.fingerprint, t.state, t.token, t.holder, t.seed, t.attempts, t.reserved_at, t.expires_at, t.tombstone, t.status, t.header,
            t.body
        INTO e
        FROM {{schema}}.{{parent}} t
        WHERE t.client = p_client AND t.key = p_key AND t.bucket <= newest;
        alive_until := NULL;
        IF e.state = {{reserved}} THEN
            SELECT h.expires_at INTO alive_until FROM {{schema}}.holders h WHERE h.holder = e.holder AND h.expires_at > now_at;
        END IF;
        live := coalesce(e.expires_at > now_at OR alive_until IS NOT NULL, false);
        EXIT WHEN locked OR p_patience < 2 AND live AND (
            e.fingerprint <> p_fingerprint OR e.state = {{completed}} OR e.token <> p_token AND alive_until IS NOT NULL
        );
        IF p_patience = 0 THEN
            RETURN d;
        ELSIF NOT {{schema}}.lock_entry({{lock}}) THEN
            -- A transaction of the app is about to complete the entry, or not. What it may yet commit is not to be taken over. When is not known.
            d.outcome := CASE WHEN live AND e.fingerprint <> p_fingerprint THEN {{Mismatch}} ELSE {{InFlight}} END;
            d.since := {{schema}}.microseconds(now_at - e.reserved_at);
            RETURN d;
        END IF;
        locked := true;
    END LOOP;

    IF live AND e.fingerprint <> p_fingerprint THEN
        d.outcome := {{Mismatch}};
    ELSIF live AND e.state = {{completed}} THEN
        d.outcome := {{Completed}};
        d.tombstone := e.tombstone;
        d.status := e.status;
        d.header := e.header;
        d.body := e.body;
    ELSIF live AND e.state = {{reserved}} AND e.token = p_token THEN
        -- The answer to this very call was lost. Whoever lost it may have cut short its commit's wait for a synchronous standby as well; the row's lock
        -- is in the log behind that commit, so that this commit waits for both.
        PERFORM FROM {{schema}}.{{parent}} t WHERE t.client = p_client AND t.key = p_key AND t.bucket = e.bucket FOR UPDATE;
        held := {{schema}}.hold(p_holder, p_lease, now_at, held_until);
        d.outcome := CASE WHEN e.attempts = 1 THEN {{New}} ELSE {{TakenOver}} END;
        d.seed := e.seed;
    ELSIF live AND alive_until IS NOT NULL THEN
        d.outcome := {{InFlight}};
        d.lease_remaining := {{schema}}.microseconds(alive_until - now_at);
        d.since := {{schema}}.microseconds(now_at - e.reserved_at);
    ELSIF live AND (NOT p_take_over OR e.token = p_token) THEN
        -- With its own token it is a call that was late: the attempt that it asks for has ended.
        d.outcome := {{Unknown}};
        d.since := {{schema}}.microseconds(now_at - e.reserved_at);
    ELSIF live THEN
        held := {{schema}}.hold(p_holder, p_lease, now_at, held_until);
        UPDATE {{schema}}.{{parent}} t
        SET state = {{reserved}}, token = p_token, holder = p_holder, attempts = t.attempts + 1, route = p_route, reserved_at = now_at,
            lifetime = p_window, expires_at = now_at + p_window
        WHERE t.client = p_client AND t.key = p_key AND t.bucket = e.bucket;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'partition went away' USING ERRCODE = 'serialization_failure';
        END IF;
        d.outcome := {{TakenOver}};
        d.seed := e.seed;
    ELSE
        IF e.bucket IS NOT NULL THEN
            DELETE FROM {{schema}}.{{parent}} t WHERE t.client = p_client AND t.key = p_key AND t.bucket = e.bucket;
        END IF;
        held := {{schema}}.hold(p_holder, p_lease, now_at, held_until);
        bucket := CASE WHEN p_newest THEN {{schema}}.bucket_for('{{schema}}.{{parent}}', now_at) ELSE date_trunc('day', now_at, 'UTC') END;
        IF bucket > newest THEN
            -- The first entry of a day. The others wait for it, once.
            UPDATE {{schema}}.keyspaces k SET newest_bucket = bucket WHERE k.relation = '{{relation}}' AND k.newest_bucket < bucket;
        END IF;
        d.outcome := {{New}};
        d.seed := gen_random_uuid();
        INSERT INTO {{schema}}.{{parent}}
            (client, key, bucket, fingerprint, state, token, holder, seed, attempts, route, lifetime, reserved_at, expires_at)
        VALUES (
            p_client, p_key, bucket, p_fingerprint, {{reserved}}, p_token, p_holder, d.seed, 1, p_route, p_window, now_at, now_at + p_window
        );
    END IF;
    RETURN d;
END
$$;
