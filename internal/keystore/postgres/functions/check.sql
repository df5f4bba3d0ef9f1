-- SPDX-License-Identifier: Apache-2.0
-- check is Store.Check: it fails when reserve would.
CREATE OR REPLACE FUNCTION {{schema}}.{{check}}() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {{settings}} AS $$
BEGIN
    PERFORM {{schema}}.enter();
    IF pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean THEN
        RAISE EXCEPTION 'server is read-only' USING ERRCODE = 'read_only_sql_transaction';
    END IF;
    PERFORM {{schema}}.bucket_for('{{schema}}.{{parent}}', {{schema}}.now_());
END
$$;
