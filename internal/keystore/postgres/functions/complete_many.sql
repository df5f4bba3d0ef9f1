-- SPDX-License-Identifier: Apache-2.0
-- complete_many records many answers in one transaction, as complete would, one after the other. It returns the places of those that it has
-- recorded. Whoever is not in the answer asks complete: his entry is locked by another transaction, was not reserved today, or is not his.
-- It waits for no entry's lock.
CREATE OR REPLACE FUNCTION {{schema}}.{{complete_many}}(
    p_clients text[], p_keys text[], p_tokens uuid[], p_tombstones text[], p_statuses integer[], p_headers bytea[], p_bodies bytea[]
) RETURNS SETOF integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {{settings_many}} AS $$
DECLARE
    now_at timestamptz;
    locked boolean[];
BEGIN
    locked := CASE WHEN {{schema}}.enter() THEN ARRAY(
        SELECT pg_try_advisory_xact_lock({{lock_many}}) FROM unnest(p_clients, p_keys) AS q (client, key)
    ) END;
    now_at := {{schema}}.now_();
    RETURN QUERY
    UPDATE {{schema}}.{{parent}} t
    SET state = {{completed}}, tombstone = q.tombstone, status = q.status, header = q.header, body = q.body, expires_at = now_at + t.lifetime
    FROM unnest(p_clients, p_keys, p_tokens, p_tombstones, p_statuses, p_headers, p_bodies, locked) WITH ORDINALITY
        AS q (client, key, token, tombstone, status, header, body, locked, place)
    WHERE q.locked AND t.client = q.client AND t.key = q.key AND t.token = q.token AND t.bucket = date_trunc('day', now_at, 'UTC')
        AND t.state <> {{completed}} AND t.expires_at > now_at
    RETURNING q.place::integer;
END
$$;
