-- SPDX-License-Identifier: Apache-2.0
-- One at a time, and no long wait for anybody's lock. Until the transaction ends.
SELECT set_config('lock_timeout', '5s', true), pg_advisory_xact_lock(hashtextextended('idempotency migrate ' || $1, 0))
