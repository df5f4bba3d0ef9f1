-- SPDX-License-Identifier: Apache-2.0
-- The parent of the daily partitions in which consumers' deliveries are kept: client is the consumer, key the message's id. It has what retention reads
-- of every keyspace: a delivery is complete from the start. As with entries, deliver keeps rows unique, and each partition has PRIMARY KEY (client, key).
CREATE TABLE IF NOT EXISTS {{schema}}.{{parent}} (
    client     text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    bucket     timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    state      smallint NOT NULL DEFAULT {{completed}}
) PARTITION BY RANGE (bucket);
