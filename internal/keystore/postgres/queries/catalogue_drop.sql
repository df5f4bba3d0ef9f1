-- SPDX-License-Identifier: Apache-2.0
-- Lock: ACCESS EXCLUSIVE on a table that is no partition any more.
DROP TABLE {{schema}}.{{partition}}
