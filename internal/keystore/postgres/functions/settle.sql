-- SPDX-License-Identifier: Apache-2.0
-- settle ends an unknown outcome by an administrator's word: with an answer, or without one: the entry is absent then. False: the entry is not
-- unknown, or not held with p_token any more. The new token keeps a holder that comes back from changing anything.
CREATE OR REPLACE FUNCTION {{schema}}.{{settle}}(
    p_client text, p_key text, p_token uuid, p_happened boolean, p_tombstone text, p_status integer, p_header bytea, p_body bytea
) RETURNS boolean
LANGUAGE plpgsql VOLATILE {{settings}} AS $$
DECLARE
    now_at timestamptz;
BEGIN
    PERFORM {{schema}}.enter();
    PERFORM pg_advisory_xact_lock({{lock}});
    now_at := {{schema}}.now_();
    IF NOT EXISTS (
        SELECT FROM {{schema}}.{{parent}} t
        WHERE {{own}} AND t.expires_at > now_at AND (
            t.state = {{unknown}} OR t.state = {{reserved}} AND NOT EXISTS (
                SELECT FROM {{schema}}.holders h WHERE h.holder = t.holder AND h.expires_at > now_at
            )
        )
    ) THEN
        RETURN false;
    END IF;
    IF p_happened THEN
        UPDATE {{schema}}.{{parent}} t
        SET state = {{completed}}, token = gen_random_uuid(), tombstone = p_tombstone, status = p_status, header = p_header, body = p_body,
            expires_at = now_at + t.lifetime
        WHERE {{own}};
    ELSE
        DELETE FROM {{schema}}.{{parent}} t WHERE {{own}};
    END IF;
    RETURN FOUND;
END
$$;
