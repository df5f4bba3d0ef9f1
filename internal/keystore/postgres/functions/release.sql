-- SPDX-License-Identifier: Apache-2.0
-- release is Store.Release; false: not the owner. NULL: as with complete. Only a first attempt leaves nothing behind: what was taken
-- over may have taken effect before.
CREATE OR REPLACE FUNCTION {{schema}}.{{release}}(p_client text, p_key text, p_token uuid, p_wait boolean) RETURNS boolean
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
    DELETE FROM {{schema}}.{{parent}} t
    WHERE {{own}} AND t.state = {{reserved}} AND t.attempts = 1 AND {{honoured}};
    IF FOUND THEN
        RETURN true;
    END IF;
    UPDATE {{schema}}.{{parent}} t
    SET state = {{unknown}}, expires_at = now_at + t.lifetime
    WHERE {{own}} AND t.state = {{reserved}} AND {{honoured}};
    IF FOUND THEN
        RETURN true;
    END IF;
    -- Repeated. See reserve for the lock.
    PERFORM FROM {{schema}}.{{parent}} t
    WHERE {{own}} AND t.state = {{unknown}} AND t.attempts > 1 AND t.expires_at > now_at
    FOR UPDATE;
    RETURN FOUND;
END
$$;
