// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"path"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Pool is the store's connections.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }

// Latest is the version of the schema.
func Latest() int32 { return latest() }

// Statements are all queries of the store and of its administration, by name.
func Statements(schema, keyspace string) map[string]string {
	files, err := queries.ReadDir("queries")
	if err != nil {
		panic(err)
	}
	all := map[string]string{}
	for _, f := range files {
		name := strings.TrimSuffix(path.Base(f.Name()), ".sql")
		if !strings.HasPrefix(name, "catalogue_") {
			all[name] = inKeyspace(schema, keyspace).query(name)
		}
	}
	return all
}
