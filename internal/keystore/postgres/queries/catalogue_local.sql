-- SPDX-License-Identifier: Apache-2.0
-- What every transaction of maintenance sets for itself.
SELECT
    set_config('lock_timeout', $1, true),
    set_config('DateStyle', 'ISO', true),
    set_config('TimeZone', 'UTC', true),
    set_config('max_parallel_workers_per_gather', '0', true)
