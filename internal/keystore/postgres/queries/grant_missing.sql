-- SPDX-License-Identifier: Apache-2.0
-- Whether role $1 lacks a privilege on schema $2 or on one of the functions $3. Fails when there is no such role.
SELECT NOT has_schema_privilege($1, $2, 'USAGE') OR EXISTS (
    SELECT FROM unnest($3::text[]) AS f (signature) WHERE NOT has_function_privilege($1, f.signature, 'EXECUTE')
)
