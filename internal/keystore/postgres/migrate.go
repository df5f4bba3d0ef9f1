// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"embed"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed migrations/*.sql
var migrations embed.FS

// migration is a file migrations/<version>_<name>.sql. Once released it never changes.
type migration struct {
	version int32
	sql     string
}

// known lists the migrations in order.
func known() []migration {
	files, err := migrations.ReadDir("migrations")
	if err != nil {
		panic(err) // it is embedded
	}
	var all []migration
	for _, f := range files {
		number, _, _ := strings.Cut(f.Name(), "_")
		version, err := strconv.ParseInt(number, 10, 32)
		if err != nil {
			panic(fmt.Sprintf("migration %s has no number", f.Name()))
		}
		all = append(all, migration{version: int32(version), sql: read(migrations, path.Join("migrations", f.Name()))})
	}
	slices.SortFunc(all, func(a, b migration) int { return int(a.version - b.version) })
	return all
}

// latest is the version of the schema that this program wants. It rises with every change to migrations or to functions.
func latest() int32 { return known()[len(known())-1].version }

// Migrate brings the schema, and every keyspace's functions, to the version of this program; it leaves a newer one alone. Each migration and
// each keyspace is a transaction of its own, under a lock and with a lock timeout, so that it may be repeated, and run by several at once.
func (a *Admin) Migrate(ctx context.Context) error {
	err := a.exclusively(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, a.tmpl.query("migrate_begin"))
		return err
	})
	if err != nil {
		return a.wrap(ctx, "make schema", err)
	}
	for _, m := range known() {
		if err := a.exclusively(ctx, func(tx pgx.Tx) error { return a.migrate(ctx, tx, m) }); err != nil {
			return a.wrap(ctx, fmt.Sprintf("apply migration %d", m.version), err)
		}
	}
	rows, err := a.pool.Query(ctx, a.tmpl.query("keyspace_outdated"), latest())
	if err != nil {
		return a.wrap(ctx, "list keyspaces", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return a.wrap(ctx, "list keyspaces", err)
	}
	for _, name := range names {
		err := a.exclusively(ctx, func(tx pgx.Tx) error {
			found, err := a.findKeyspace(ctx, tx, name)
			if err != nil || found == nil || found.version >= latest() {
				return err
			}
			return a.install(ctx, tx, name)
		})
		if err != nil {
			return a.wrap(ctx, "migrate keyspace "+name, err)
		}
	}
	return nil
}

func (a *Admin) migrate(ctx context.Context, tx pgx.Tx, m migration) error {
	var version int32
	if err := tx.QueryRow(ctx, a.tmpl.query("migrate_version")).Scan(&version); err != nil || version >= m.version {
		return err
	}
	if _, err := tx.Exec(ctx, a.tmpl.Replace(m.sql)); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, a.tmpl.query("migrate_done"), m.version)
	return err
}
