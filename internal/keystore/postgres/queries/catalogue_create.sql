-- SPDX-License-Identifier: Apache-2.0
-- A daily partition, made and attached at once: it is either there and in use, or not there. Locks: SHARE UPDATE EXCLUSIVE on the parent (reads
-- and writes go on), ACCESS EXCLUSIVE on the new table only. PARTITION OF would take ACCESS EXCLUSIVE on the parent.
CREATE TABLE {{schema}}.{{partition}} (LIKE {{schema}}.{{parent}} INCLUDING ALL, PRIMARY KEY (client, key));
ALTER TABLE {{schema}}.{{parent}} ATTACH PARTITION {{schema}}.{{partition}} FOR VALUES FROM ({{from}}) TO ({{to}})
