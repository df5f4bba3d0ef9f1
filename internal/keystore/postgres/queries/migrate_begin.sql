-- SPDX-License-Identifier: Apache-2.0
-- The schema, which may have been made by somebody else, and the record of migrations.
DO $do$
BEGIN
    IF to_regnamespace('{{schema}}') IS NULL THEN
        CREATE SCHEMA {{schema}};
    END IF;
    CREATE TABLE IF NOT EXISTS {{schema}}.migrations (
        version    integer PRIMARY KEY,
        applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
    );
END
$do$
