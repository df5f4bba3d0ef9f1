-- SPDX-License-Identifier: Apache-2.0
-- deliver is the keyspace's part of first_delivery. The lock, held until the caller's transaction ends, makes concurrent deliveries of one message wait for
-- each other; how long is the caller's to say (lock_timeout).
--
-- At READ COMMITTED the look comes after the lock and sees what its last holder committed. Above, the snapshot is older than the lock, and what it does
-- not see shows in the unique indexes: that of today's partition by the INSERT, those of others by probing. Nothing here is worth compiling, and what
-- reads catalogues costs so much by the planner's reckoning, with these settings, that it would be, for 70 ms a call.
CREATE OR REPLACE FUNCTION {{schema}}.{{deliver}}(p_client text, p_key text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    now_at timestamptz;
    bucket timestamptz;
    e      record;
BEGIN
    PERFORM pg_advisory_xact_lock({{lock}});
    now_at := {{schema}}.now_();
    SELECT t.bucket, t.expires_at INTO e FROM {{schema}}.{{parent}} t WHERE t.client = p_client AND t.key = p_key;
    IF e.expires_at > now_at THEN
        RETURN false;
    ELSIF e.bucket IS NOT NULL THEN
        DELETE FROM {{schema}}.{{parent}} t WHERE t.client = p_client AND t.key = p_key AND t.bucket = e.bucket;
    END IF;
    bucket := date_trunc('day', now_at, 'UTC');
    IF to_regclass('{{schema}}.{{relation}}_p' || to_char(bucket AT TIME ZONE 'UTC', 'YYYYMMDD')) IS NULL THEN
        bucket := {{schema}}.bucket_for('{{schema}}.{{parent}}', now_at);
    END IF;
    INSERT INTO {{schema}}.{{parent}} (client, key, bucket, expires_at)
    SELECT p_client, p_key, bucket, now_at + c.lifetime FROM {{schema}}.consumers c WHERE c.keyspace = '{{keyspace}}' AND c.name = p_client
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'delivery is recorded already, or its consumer is gone' USING ERRCODE = 'serialization_failure';
    END IF;
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        PERFORM {{schema}}.probe_deliveries('{{schema}}.{{parent}}', now_at, p_client, p_key);
    END IF;
    RETURN true;
END
$$;
