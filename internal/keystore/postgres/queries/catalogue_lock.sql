-- SPDX-License-Identifier: Apache-2.0
-- The lock of one keyspace's maintenance, until this transaction ends.
SELECT
    pg_try_advisory_xact_lock($1, hashtext($2 || '.' || $3)),
    set_config('idle_in_transaction_session_timeout', $4, true)
