-- SPDX-License-Identifier: Apache-2.0
-- Everything about the server that a probe judges, and whether the schema's tables are there.
SELECT
    current_setting('server_version'),
    current_setting('server_version_num')::integer,
    clock_timestamp(),
    pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,
    ARRAY(
        SELECT name FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') AND setting = 'off' ORDER BY name
    ),
    to_regclass(quote_ident($1) || '.migrations') IS NOT NULL,
    CASE
        WHEN to_regnamespace(quote_ident($1)) IS NULL THEN has_database_privilege(current_database(), 'CREATE')
        ELSE has_schema_privilege(quote_ident($1)::regnamespace, 'CREATE')
    END,
    NOT EXISTS (
        SELECT FROM pg_class c
        WHERE c.relnamespace = to_regnamespace(quote_ident($1)) AND c.relkind IN ('r', 'p') AND NOT pg_has_role(c.relowner, 'USAGE')
    )
