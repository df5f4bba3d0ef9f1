// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// adminConns bounds the connections of an Admin. A pass of retention uses three.
const adminConns = 8

// Admin is the operator's side of a store: its role owns schema, tables and functions. It is safe for concurrent use, also by several programs.
// Errors wrap the sentinels of keystore and hold no part of the DSN.
type Admin struct {
	pool   *pgxpool.Pool
	schema string
	tmpl   template
}

// OpenAdmin prepares administration of schema (empty: idempotency). It does not wait for the server, and fails only with keystore.ErrDSNInvalid.
func OpenAdmin(ctx context.Context, dsn, schema string) (*Admin, error) {
	config, err := parse(dsn)
	if err != nil {
		return nil, err
	}
	config.MaxConns = adminConns
	if config.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		// It works through a pooler, too, and speed is not what matters here.
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, keystore.ErrDSNInvalid
	}
	schema = orDefault(schema, defaultSchema)
	return &Admin{pool: pool, schema: schema, tmpl: inSchema(schema)}, nil
}

// Close gives back every connection.
func (a *Admin) Close() { a.pool.Close() }

// Reset replaces every connection by a new one, since a connection keeps the settings that its role and database had when it was made.
func (a *Admin) Reset() { a.pool.Reset() }

// Catalogue is the catalogue of the partitions of keyspace. It uses up to three connections of a at once.
func (a *Admin) Catalogue(keyspace string) *Catalogue {
	return NewCatalogue(a.pool, a.schema, keyspace)
}

// EnsureKeyspace makes the keyspace unless it exists. claim names the one who may use it; empty: whoever names it shares it.
// It fails with keystore.ErrKeyspaceTaken when the keyspace exists with another claim.
func (a *Admin) EnsureKeyspace(ctx context.Context, name, claim string) error {
	found, err := a.findKeyspace(ctx, a.pool, name)
	if err != nil {
		return a.wrap(ctx, "find keyspace "+name, err)
	}
	if found == nil || found.claim == claim && found.version < latest() {
		err = a.exclusively(ctx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, a.tmpl.query("keyspace_register"), name, Relation(name), claim); err != nil {
				return err
			}
			if found, err = a.findKeyspace(ctx, tx, name); err != nil || found.claim != claim || found.version >= latest() {
				return err
			}
			return a.install(ctx, tx, name)
		})
		if err != nil {
			return a.wrap(ctx, "make keyspace "+name, err)
		}
	}
	if found.claim != claim {
		return fmt.Errorf("make keyspace %s: %w", name, keystore.ErrKeyspaceTaken)
	}
	return nil
}

// keyspace is a row of the registry.
type keyspace struct {
	claim   string
	version int32
}

// findKeyspace returns nil when there is none.
func (a *Admin) findKeyspace(ctx context.Context, db querier, name string) (*keyspace, error) {
	var k keyspace
	err := db.QueryRow(ctx, a.tmpl.query("keyspace_find"), name).Scan(&k.claim, &k.version)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil // nil is none
	}
	return &k, err
}

// querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// install makes the parent table and the functions of a registered keyspace, or makes them anew.
func (a *Admin) install(ctx context.Context, tx pgx.Tx, name string) error {
	t := inKeyspace(a.schema, name)
	table, functions := makings(name)
	if _, err := tx.Exec(ctx, t.function(table)); err != nil {
		return err
	}
	for action, arguments := range functions {
		if _, err := tx.Exec(ctx, t.function(action)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "REVOKE ALL ON FUNCTION "+a.signature(name, action, arguments)+" FROM PUBLIC"); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, a.tmpl.query("keyspace_installed"), name, latest())
	return err
}

// signature of a keyspace's function.
func (a *Admin) signature(keyspace, action, arguments string) string {
	return quote(a.schema) + "." + quote(Relation(keyspace)+"_"+action) + "(" + arguments + ")"
}

// DropKeyspace removes the keyspace with all its entries. It succeeds when there is none.
func (a *Admin) DropKeyspace(ctx context.Context, name string) error {
	err := a.exclusively(ctx, func(tx pgx.Tx) error {
		found, err := a.findKeyspace(ctx, tx, name)
		if err != nil || found == nil {
			return err
		}
		if err := a.Catalogue(name).dropDetached(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "DROP TABLE IF EXISTS "+quote(a.schema)+"."+quote(Relation(name))); err != nil {
			return err
		}
		_, functions := makings(name)
		for action, arguments := range functions {
			if _, err := tx.Exec(ctx, "DROP FUNCTION IF EXISTS "+a.signature(name, action, arguments)); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, a.tmpl.query("keyspace_forget"), name)
		return err
	})
	return a.wrap(ctx, "drop keyspace "+name, err)
}

// Grant lets role call the functions that a sidecar calls, of the given keyspaces or, without any, of all that exist. It writes nothing when
// role may do so already, and fails with keystore.ErrAuthFailed when there is no such role.
func (a *Admin) Grant(ctx context.Context, role string, keyspaces ...string) error {
	if len(keyspaces) == 0 {
		var err error
		if keyspaces, err = a.keyspaces(ctx); err != nil {
			return a.wrap(ctx, "list keyspaces", err)
		}
	}
	var functions []string
	for name, arguments := range shared() {
		functions = append(functions, quote(a.schema)+"."+name+"("+arguments+")")
	}
	for _, keyspace := range keyspaces {
		if ofConsumers(keyspace) {
			continue // their functions are called by others
		}
		for action, arguments := range granted() {
			functions = append(functions, a.signature(keyspace, action, arguments))
		}
	}
	slices.Sort(functions)
	var missing bool
	err := a.pool.QueryRow(ctx, a.tmpl.query("grant_missing"), role, a.schema, functions).Scan(&missing)
	if codeOf(err) == "42704" { // undefined_object: the role
		return fmt.Errorf("grant to sidecar's role: %w: it does not exist", keystore.ErrAuthFailed)
	}
	if err == nil && missing {
		err = a.exclusively(ctx, func(tx pgx.Tx) error { return a.grant(ctx, tx, role, functions) })
	}
	return a.wrap(ctx, "grant to sidecar's role", err)
}

func (a *Admin) grant(ctx context.Context, tx pgx.Tx, role string, functions []string) error {
	if _, err := tx.Exec(ctx, "GRANT USAGE ON SCHEMA "+quote(a.schema)+" TO "+quote(role)); err != nil {
		return err
	}
	for _, signature := range functions {
		if _, err := tx.Exec(ctx, "GRANT EXECUTE ON FUNCTION "+signature+" TO "+quote(role)); err != nil {
			return err
		}
	}
	return nil
}

func (a *Admin) keyspaces(ctx context.Context) ([]string, error) {
	rows, err := a.pool.Query(ctx, a.tmpl.query("keyspace_names"))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// exclusively runs fn in a transaction while nobody else migrates, makes, drops or grants.
func (a *Admin) exclusively(ctx context.Context, fn func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, a.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, a.tmpl.query("migrate_lock"), a.schema).Scan(nil, nil); err != nil {
			return err
		}
		return fn(tx)
	})
}

// wrap keeps nothing of what the driver says but its meaning.
func (a *Admin) wrap(ctx context.Context, verb string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", verb, cause(ctx, err))
}
