-- SPDX-License-Identifier: Apache-2.0
-- release is Store.Release; false: not the owner.
CREATE OR REPLACE FUNCTION {{schema}}.{{release}}(p_client text, p_key text, p_token uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {{settings}} AS $$
DECLARE
    now_at timestamptz;
BEGIN
    PERFORM {{schema}}.enter();
    PERFORM pg_advisory_xact_lock({{lock}});
    now_at := {{schema}}.now_();
    DELETE FROM {{schema}}.{{parent}} t
    WHERE {{own}} AND t.state = {{reserved}} AND {{honoured}};
    RETURN FOUND;
END
$$;
