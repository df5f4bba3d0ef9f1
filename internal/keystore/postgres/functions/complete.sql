-- SPDX-License-Identifier: Apache-2.0
-- complete is Store.Complete; false: not the owner. NULL: another transaction has the entry's lock; with p_wait, for too long.
-- An entry that is unknown by its holder's end takes the answer from its owner all the same.
CREATE OR REPLACE FUNCTION {{schema}}.{{complete}}(
    p_client text, p_key text, p_token uuid, p_tombstone text, p_status integer, p_header bytea, p_body bytea, p_wait boolean
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {{settings}} AS $$
DECLARE
    now_at timestamptz;
BEGIN
    IF {{schema}}.enter() AND NOT pg_try_advisory_xact_lock({{lock}}) THEN
        IF NOT p_wait OR NOT {{schema}}.lock_entry({{lock}}) THEN
            RETURN NULL;
        END IF;
    END IF;
    now_at := {{schema}}.now_();
    UPDATE {{schema}}.{{parent}} t
    SET state = {{completed}}, tombstone = p_tombstone, status = p_status, header = p_header, body = p_body, expires_at = now_at + t.lifetime
    WHERE t.bucket = date_trunc('day', now_at, 'UTC') AND {{own}} AND t.state <> {{completed}} AND t.expires_at > now_at;
    IF FOUND THEN
        RETURN true;
    END IF;
    -- It was not reserved today, or only its holder's life keeps it.
    UPDATE {{schema}}.{{parent}} t
    SET state = {{completed}}, tombstone = p_tombstone, status = p_status, header = p_header, body = p_body, expires_at = now_at + t.lifetime
    WHERE {{own}} AND t.state <> {{completed}} AND {{honoured}};
    IF FOUND THEN
        RETURN true;
    END IF;
    -- Repeated. See reserve for the lock.
    PERFORM FROM {{schema}}.{{parent}} t
    WHERE {{own}} AND t.state = {{completed}} AND t.expires_at > now_at
    FOR UPDATE;
    RETURN FOUND;
END
$$;
