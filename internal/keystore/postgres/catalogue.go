// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-dev/operator/internal/retention"
)

const (
	// lockTimeout bounds how long DDL waits for a lock, and so how long a write may have to wait behind it.
	lockTimeout = "250ms"
	// maintenanceClass is the first key of the advisory locks that keep two processes from maintaining one keyspace. Entries use the other
	// key space, of single 64-bit keys.
	maintenanceClass = 0x1de0
	// passLimit ends the transaction that holds the lock of a process that was cut off.
	passLimit = "30min"
)

// Catalogue is the partitions of one keyspace. It implements retention.Catalogue.
//
// Nothing here depends on session state but a lock timeout around a concurrent detach, which PostgreSQL refuses inside a transaction. Through
// PgBouncer in transaction mode that one setting may be lost; the connection of the operator should be direct.
type Catalogue struct {
	pool     *pgxpool.Pool
	schema   string
	keyspace string
	tmpl     template
}

var _ retention.Catalogue = (*Catalogue)(nil)

// NewCatalogue is the catalogue of keyspace in schema. It uses up to three connections of pool at once and does not close it.
func NewCatalogue(pool *pgxpool.Pool, schema, keyspace string) *Catalogue {
	return &Catalogue{pool: pool, schema: schema, keyspace: keyspace, tmpl: inKeyspace(schema, keyspace)}
}

// Lock takes the keyspace's lock in a transaction that stays open, so that it survives a connection pooler and dies with the process.
func (c *Catalogue) Lock(ctx context.Context) (func(), error) {
	tx, err := c.pool.Begin(ctx)
	if err != nil {
		return nil, c.translate(ctx, err)
	}
	unlock := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = tx.Rollback(ctx) // a connection that cannot roll back is closed, which does the same
	}
	var taken bool
	// Under the extended protocol the portal would keep its snapshot, and FINALIZE waits for the ends of all older ones.
	err = tx.QueryRow(ctx, c.tmpl.query("catalogue_lock"), pgx.QueryExecModeSimpleProtocol, maintenanceClass, c.schema, c.keyspace, passLimit).Scan(&taken, nil)
	switch {
	case err != nil:
		unlock()
		return nil, c.translate(ctx, err)
	case !taken:
		unlock()
		return nil, retention.ErrLocked
	}
	return unlock, nil
}

// State reads the keyspace's partitions. It fails when the keyspace is not registered.
func (c *Catalogue) State(ctx context.Context) (retention.State, error) {
	states, err := survey(ctx, c, &c.keyspace)
	if err != nil {
		return retention.State{}, c.translate(ctx, err)
	}
	state, found := states[c.keyspace]
	if !found {
		return retention.State{}, fmt.Errorf("find keyspace %s: %w", c.keyspace, retention.ErrNotRegistered)
	}
	return state, nil
}

// Survey reads the partitions of every keyspace at once, by the keyspace's name.
func (a *Admin) Survey(ctx context.Context) (map[string]retention.State, error) {
	states, err := survey(ctx, a.Catalogue(""), nil)
	if err != nil {
		return nil, a.wrap(ctx, "read catalogue", err)
	}
	return states, nil
}

// survey reads the partitions of one keyspace, or of all, in one query.
func survey(ctx context.Context, c *Catalogue, keyspace *string) (map[string]retention.State, error) {
	states := map[string]retention.State{}
	err := pgx.BeginTxFunc(ctx, c.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, c.tmpl.query("catalogue_local"), lockTimeout); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, c.tmpl.query("catalogue_state"), keyspace, c.schema)
		if err != nil {
			return err
		}
		if err := collect(rows, states); err != nil {
			return err
		}
		for _, state := range states {
			if err := c.lookIntoDefault(ctx, tx, state.Partitions); err != nil {
				return err
			}
		}
		return nil
	})
	return states, err
}

func collect(rows pgx.Rows, states map[string]retention.State) error {
	defer rows.Close()
	for rows.Next() {
		var name string
		var relation, link, foreign, phase *string
		var isDefault *bool
		var from, to, honouredUntil *time.Time
		var rowCount, bytes *int64
		var state retention.State
		var p retention.Partition
		if err := rows.Scan(&name, &state.Parent, &relation, &link, &isDefault, &from, &to, &foreign, &phase, &honouredUntil,
			&p.Unsettled, &rowCount, &bytes, &state.Now, &state.ReadOnly); err != nil {
			return err
		}
		if known, found := states[name]; found {
			state.Partitions = known.Partitions
		}
		if relation != nil {
			p.Relation, p.Link, p.Default, p.Foreign, p.Phase = *relation, links[*link], *isDefault, *foreign, retention.Phase(*phase)
			p.From, p.To, p.HonouredUntil = instant(from), instant(to), instant(honouredUntil)
			p.Rows, p.Bytes = value(rowCount), value(bytes)
			state.Partitions = append(state.Partitions, p)
		}
		states[name] = state
	}
	return rows.Err()
}

// lookIntoDefault tells whether a default partition has rows.
func (c *Catalogue) lookIntoDefault(ctx context.Context, tx pgx.Tx, partitions []retention.Partition) error {
	for i := range partitions {
		if !partitions[i].Default {
			continue
		}
		query := c.about(partitions[i], "catalogue_default")
		if err := tx.QueryRow(ctx, query).Scan(&partitions[i].HasRows); err != nil {
			return err
		}
	}
	return nil
}

var links = map[string]retention.Link{
	"attached": retention.Attached, "pending": retention.PendingDetach, "detached": retention.Detached,
}

// instant is t in UTC, or the zero time.
func instant(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

func value(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

// dropDetached drops the tables of the keyspace that retention has detached and not yet dropped.
func (c *Catalogue) dropDetached(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, c.tmpl.query("catalogue_detached"), c.keyspace, c.schema)
	if err != nil {
		return err
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, table := range tables {
		if _, err := tx.Exec(ctx, c.about(retention.Partition{Relation: table}, "catalogue_drop")); err != nil {
			return err
		}
	}
	return err
}

// about is the statement of the file queries/<name>.sql about one partition, with its quoted name and its bounds in UTC.
func (c *Catalogue) about(p retention.Partition, name string) string {
	bound := func(t time.Time) string { return "'" + t.UTC().Format("2006-01-02 15:04:05") + "+00'" }
	places := strings.NewReplacer("{{partition}}", quote(p.Relation), "{{from}}", bound(p.From), "{{to}}", bound(p.To))
	return places.Replace(c.tmpl.query(name))
}

// translate turns what the server says of a step into retention's errors, and anything else into keystore's.
func (c *Catalogue) translate(ctx context.Context, err error) error {
	switch codeOf(err) {
	case "55P03", "40P01": // lock_not_available, deadlock_detected
		return retention.ErrLockTimeout
	case "42P07", "23505", "42P17": // duplicate_table, unique_violation in a catalog, overlapping bounds
		return retention.ErrChanged
	case "":
		for _, known := range []error{retention.ErrChanged, retention.ErrNameTaken} {
			if errors.Is(err, known) {
				return known
			}
		}
	}
	return cause(ctx, err)
}
