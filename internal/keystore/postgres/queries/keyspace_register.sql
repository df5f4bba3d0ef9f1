-- SPDX-License-Identifier: Apache-2.0
INSERT INTO {{schema}}.keyspaces (name, relation, claim, version) VALUES ($1, $2, $3, 0) ON CONFLICT (name) DO NOTHING
