-- SPDX-License-Identifier: Apache-2.0
-- Ends a concurrent detach that was interrupted. Locks: as the detach itself.
ALTER TABLE {{schema}}.{{parent}} DETACH PARTITION {{schema}}.{{partition}} FINALIZE
