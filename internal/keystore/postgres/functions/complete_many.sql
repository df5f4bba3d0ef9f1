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
    today  regclass;
BEGIN
    locked := CASE WHEN {{schema}}.enter() THEN ARRAY(
        SELECT pg_try_advisory_xact_lock({{lock_many}}) FROM unnest(p_clients, p_keys) AS q (client, key)
    ) END;
    now_at := {{schema}}.now_();
    SELECT c.oid::regclass INTO today
    FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid
    WHERE i.inhparent = '{{schema}}.{{parent}}'::regclass AND NOT i.inhdetachpending
        AND c.relname = '{{relation}}' || to_char(now_at AT TIME ZONE 'UTC', '"_p"YYYYMMDD');
    IF today IS NULL THEN
        RETURN;
    END IF;
    -- To plan for one partition takes less time than to open all of them for an update through the parent.
    RETURN QUERY EXECUTE format(
        'UPDATE %s t'
        ' SET state = {{completed}}, tombstone = q.tombstone, status = q.status, header = q.header, body = q.body, expires_at = $1 + t.lifetime'
        ' FROM unnest($2, $3, $4, $5, $6, $7, $8, $9) WITH ORDINALITY'
        ' AS q (client, key, token, tombstone, status, header, body, locked, place)'
        ' WHERE q.locked AND t.client = q.client AND t.key = q.key AND t.token = q.token AND t.state <> {{completed}} AND t.expires_at > $1'
        ' RETURNING q.place::integer', today
    ) USING now_at, p_clients, p_keys, p_tokens, p_tombstones, p_statuses, p_headers, p_bodies, locked;
END
$$;
