-- SPDX-License-Identifier: Apache-2.0
-- The parent of a keyspace's daily partitions. It has no unique constraint, since that would have to contain the bucket: one entry could then exist
-- once per day. The functions below keep entries unique. Each partition has PRIMARY KEY (client, key).
CREATE TABLE IF NOT EXISTS {{schema}}.{{parent}} (
    client      text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    -- Start of the UTC day of the partition that holds the row.
    bucket      timestamptz NOT NULL,
    fingerprint bytea NOT NULL,
    -- 1 reserved, 2 completed, 3 unknown. A reserved entry whose holder has no live lease is unknown, too.
    state       smallint NOT NULL,
    token       uuid NOT NULL,
    holder      uuid NOT NULL,
    seed        uuid NOT NULL,
    -- 1, and one more for each take-over.
    attempts    integer NOT NULL,
    route       text NOT NULL,
    lifetime    interval NOT NULL,
    reserved_at timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    tombstone   text,
    status      integer,
    header      bytea,
    body        bytea
) PARTITION BY RANGE (bucket);
