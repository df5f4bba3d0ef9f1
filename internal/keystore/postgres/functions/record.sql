-- SPDX-License-Identifier: Apache-2.0
-- record is the keyspace's part of complete: the owner's answer, written in the caller's own transaction, at whatever isolation level that has.
--
-- At READ COMMITTED the lock makes the look a fresh one. Above, the snapshot may be older than the lock; the row then decides: every transition writes
-- or deletes it, so that an entry which has changed since the snapshot makes the UPDATE fail with a serialization failure, and one that the snapshot
-- does not see is not the caller's. Only the entry's own partition is locked against DDL until the caller commits.
--
-- What this very transaction has recorded is remembered in a setting that ends with it, and with a savepoint that it rolls back to. An answer that
-- another transaction has recorded under the same token is that of the same effect: the caller is about to have it a second time.
CREATE OR REPLACE FUNCTION {{schema}}.{{record}}(
    p_client text, p_key text, p_token uuid, p_status integer, p_header bytea, p_body bytea
) RETURNS void
LANGUAGE plpgsql VOLATILE {{settings}} AS $$
DECLARE
    now_at  timestamptz;
    e       record;
    written bigint;
BEGIN
    PERFORM pg_advisory_xact_lock({{lock}});
    now_at := {{schema}}.now_();
    SELECT t.tableoid::regclass AS relation, t.state, {{honoured}} AS honoured INTO e FROM {{schema}}.{{parent}} t WHERE {{own}};
    IF e.honoured AND e.state = {{completed}} THEN
        IF current_setting('idempotency.recorded', true) = p_token::text THEN
            RETURN;
        END IF;
        RAISE EXCEPTION 'the answer was recorded by an earlier transaction' USING ERRCODE = 'IK004',
            HINT = 'Roll back: the effect has been committed already, and a retry of the request replays its answer.';
    END IF;
    IF e.honoured THEN
        EXECUTE format(
            'UPDATE %s SET state = {{completed}}, tombstone = NULL, status = $1, header = $2, body = $3, expires_at = $4 + lifetime'
            ' WHERE client = $5 AND key = $6 AND token = $7 AND state <> {{completed}}', e.relation
        ) USING p_status, p_header, p_body, now_at, p_client, p_key, p_token;
        GET DIAGNOSTICS written = ROW_COUNT;
    END IF;
    IF written = 1 THEN
        PERFORM set_config('idempotency.recorded', p_token::text, true);
        RETURN;
    END IF;
    RAISE EXCEPTION 'the reservation is not held any more' USING ERRCODE = 'IK003',
        HINT = 'Roll back: somebody else has taken the request over, or its outcome was settled. At REPEATABLE READ and above the transaction has to begin after the request has come in.';
END
$$;
