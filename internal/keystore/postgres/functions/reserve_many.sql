-- SPDX-License-Identifier: Apache-2.0
-- reserve_many decides many reservations of one holder in one transaction, as reserve would, one after the other. It returns those that it could decide
-- at once, by their place in the arrays: new, mismatch, completed and in flight. Whoever is not in the answer asks reserve: his entry is absent and
-- locked by another transaction, unknown, to be replaced, or the first of its day, or he asks a second time.
--
-- It waits for no entry's lock, so that no batch waits for another, nor for whoever keeps a transaction open. The order is that of reserve.
CREATE OR REPLACE FUNCTION {{schema}}.{{reserve_many}}(
    p_clients text[], p_keys text[], p_fingerprints bytea[], p_tokens uuid[], p_holder uuid, p_lease interval, p_windows interval[], p_routes text[]
) RETURNS SETOF {{schema}}.placed_decision
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {{settings_many}} AS $$
DECLARE
    now_at timestamptz;
    newest timestamptz;
    today  timestamptz;
    held   boolean;
    locked boolean[];
BEGIN
    locked := CASE WHEN {{schema}}.enter() THEN ARRAY(
        SELECT pg_try_advisory_xact_lock({{lock_many}}) FROM unnest(p_clients, p_keys) AS q (client, key)
    ) END;
    now_at := {{schema}}.now_();
    SELECT
        k.newest_bucket,
        date_trunc('day', now_at, 'UTC'),
        EXISTS (SELECT FROM {{schema}}.holders h WHERE h.holder = p_holder AND h.expires_at > now_at + p_lease / 2)
    INTO newest, today, held
    FROM {{schema}}.keyspaces k WHERE k.relation = '{{relation}}';

    RETURN QUERY
    WITH found AS MATERIALIZED (
        SELECT
            q.*, e.bucket, e.state, e.tombstone, e.status, e.header, e.body, e.reserved_at, e.fingerprint AS known, e.token AS owner,
            e.expires_at > now_at AS honoured,
            CASE WHEN e.state = {{reserved}} THEN
                (SELECT h.expires_at FROM {{schema}}.holders h WHERE h.holder = e.holder AND h.expires_at > now_at)
            END AS alive_until
        FROM unnest(p_clients, p_keys, p_fingerprints, p_tokens, p_windows, p_routes, locked) WITH ORDINALITY
            AS q (client, key, fingerprint, token, lifetime, route, locked, place)
        LEFT JOIN LATERAL (
            SELECT * FROM {{schema}}.{{parent}} t WHERE t.client = q.client AND t.key = q.key AND t.bucket <= newest
        ) e ON true
    ), made AS (
        INSERT INTO {{schema}}.{{parent}} AS t
            (client, key, bucket, fingerprint, state, token, holder, seed, attempts, route, lifetime, reserved_at, expires_at)
        SELECT
            f.client, f.key, today, f.fingerprint, {{reserved}}, f.token, p_holder, gen_random_uuid(), 1, f.route, f.lifetime, now_at,
            now_at + f.lifetime
        FROM found f
        WHERE f.locked AND f.bucket IS NULL AND held AND today <= newest
        ON CONFLICT DO NOTHING
        RETURNING t.token, t.seed
    )
    SELECT f.place::integer, {{New}}, m.seed, NULL::text, NULL::integer, NULL::bytea, NULL::bytea, NULL::bigint, NULL::bigint
    FROM made m JOIN found f ON f.token = m.token
    UNION ALL
    SELECT
        f.place::integer,
        d.outcome,
        NULL::uuid,
        CASE WHEN d.outcome = {{Completed}} THEN f.tombstone END,
        CASE WHEN d.outcome = {{Completed}} THEN f.status END,
        CASE WHEN d.outcome = {{Completed}} THEN f.header END,
        CASE WHEN d.outcome = {{Completed}} THEN f.body END,
        CASE WHEN d.outcome = {{InFlight}} THEN {{schema}}.microseconds(f.alive_until - now_at) END,
        CASE WHEN d.outcome = {{InFlight}} THEN {{schema}}.microseconds(now_at - f.reserved_at) END
    FROM found f,
    LATERAL (SELECT CASE
        WHEN f.known <> f.fingerprint THEN {{Mismatch}}
        WHEN f.state = {{completed}} THEN {{Completed}}
        WHEN f.owner <> f.token AND f.alive_until IS NOT NULL THEN {{InFlight}}
    END AS outcome) d
    WHERE (f.honoured OR f.alive_until IS NOT NULL) AND d.outcome IS NOT NULL;
END
$$;
