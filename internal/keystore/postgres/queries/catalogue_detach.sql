-- SPDX-License-Identifier: Apache-2.0
-- Locks: SHARE UPDATE EXCLUSIVE on the parent; then, when every transaction that used the parent has ended, ACCESS EXCLUSIVE on the partition, which no
-- new query looks at any more.
ALTER TABLE {{schema}}.{{parent}} DETACH PARTITION {{schema}}.{{partition}} CONCURRENTLY
