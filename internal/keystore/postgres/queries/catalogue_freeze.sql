-- SPDX-License-Identifier: Apache-2.0
-- No holder begins or renews a lease until this transaction ends, a few milliseconds from now.
LOCK TABLE {{schema}}.holders IN SHARE MODE
