-- SPDX-License-Identifier: Apache-2.0
-- Consumer $2 of the consumers' keyspace $1 remembers deliveries for $3.
INSERT INTO {{schema}}.consumers AS c (keyspace, name, lifetime) VALUES ($1, $2, $3)
ON CONFLICT (keyspace, name) DO UPDATE SET lifetime = excluded.lifetime WHERE c.lifetime <> excluded.lifetime
