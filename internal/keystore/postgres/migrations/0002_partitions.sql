-- SPDX-License-Identifier: Apache-2.0
-- Why: retention's own record of every partition: what it has counted in it, and what it has retired but not yet dropped.
-- Locks: none on tables in use; everything here is new.

CREATE TABLE {{schema}}.partitions (
    relation       text COLLATE "C" PRIMARY KEY,
    keyspace       text COLLATE "C" NOT NULL REFERENCES {{schema}}.keyspaces (name) ON DELETE CASCADE,
    -- Of the table that this row speaks of. Another table of the same name is not ours to drop.
    oid            oid NOT NULL,
    from_bucket    timestamptz NOT NULL,
    to_bucket      timestamptz NOT NULL,
    phase          text NOT NULL CHECK (phase IN ('open', 'sealed', 'retiring')),
    -- New for every sealing, so that a count is never recorded for another seal than the one it was made under.
    seal           uuid,
    -- Counted under the seal. NULL: not counted.
    honoured_until timestamptz,
    entries        bigint,
    unsettled      bigint
);

CREATE INDEX partitions_keyspace ON {{schema}}.partitions (keyspace);

-- unseal is the trigger of a sealed partition. A write makes the count void, in the writer's own transaction: the row lock that it takes
-- here keeps the partition from being retired before the writer has ended. A retiring partition refuses writes.
CREATE FUNCTION {{schema}}.unseal() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, {{schema}}, pg_temp AS $$
BEGIN
    PERFORM FROM partitions WHERE relation = TG_TABLE_NAME::text AND phase = 'open' FOR SHARE;
    IF FOUND THEN
        RETURN NEW;
    END IF;
    UPDATE partitions SET phase = 'open', seal = NULL, honoured_until = NULL, entries = NULL, unsettled = NULL
    WHERE relation = TG_TABLE_NAME::text AND phase <> 'retiring';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'partition % is being retired', TG_TABLE_NAME USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    RETURN NEW;
END
$$;

REVOKE ALL ON FUNCTION {{schema}}.unseal() FROM PUBLIC;
