// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-dev/operator/internal/retention"
)

// Do performs one step. Each looks first, in its own transaction, whether it is still due.
func (c *Catalogue) Do(ctx context.Context, step retention.Step) (retention.Effect, error) {
	steps := map[retention.Action]func(context.Context, retention.Partition) (retention.Effect, error){
		retention.Create:   c.create,
		retention.Seal:     c.seal,
		retention.Retire:   c.retire,
		retention.Detach:   c.detach,
		retention.Finalize: c.finalize,
		retention.Drop:     c.drop,
		retention.Restore:  c.restore,
	}
	effect, err := steps[step.Action](ctx, step.Partition)
	if err != nil {
		return retention.Effect{}, c.translate(ctx, err)
	}
	return effect, nil
}

// found is a table as a step finds it.
type found struct {
	oid   uint32 // 0: there is no table of this name
	link  retention.Link
	phase retention.Phase
	// seal is nil unless the phase is sealed; unsettled was counted under it.
	seal      *[16]byte
	unsettled int64
}

// within runs fn in a short transaction of its own that knows what relation is right now.
func (c *Catalogue) within(ctx context.Context, relation string, fn func(pgx.Tx, found) error) error {
	return pgx.BeginTxFunc(ctx, c.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, c.tmpl.query("catalogue_local"), lockTimeout); err != nil {
			return err
		}
		var table found
		var oid *uint32
		var link string
		err := tx.QueryRow(ctx, c.tmpl.query("catalogue_find"), c.keyspace, relation, c.schema).Scan(&oid, &link, &table.phase, &table.seal, &table.unsettled)
		if errors.Is(err, pgx.ErrNoRows) {
			return retention.ErrChanged // the keyspace is gone
		}
		if err != nil {
			return err
		}
		if oid != nil {
			table.oid = *oid
		}
		table.link = links[link]
		return fn(tx, table)
	})
}

// due is nil when the table is there, hangs so on its parent and is in one of the phases.
func (f found) due(link retention.Link, phases ...retention.Phase) error {
	if f.oid != 0 && f.link == link {
		for _, phase := range phases {
			if f.phase == phase {
				return nil
			}
		}
	}
	return retention.ErrChanged
}

func (c *Catalogue) create(ctx context.Context, p retention.Partition) (retention.Effect, error) {
	return retention.Effect{}, c.within(ctx, p.Relation, func(tx pgx.Tx, table found) error {
		if table.oid != 0 && table.link == retention.Attached {
			return retention.ErrChanged
		}
		if table.oid != 0 {
			return retention.ErrNameTaken
		}
		ddl := c.about(p, "catalogue_create")
		if _, err := tx.Exec(ctx, ddl, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		return c.record(ctx, tx, p, retention.Open).Scan(nil)
	})
}

// record writes our record of p; it yields the seal.
func (c *Catalogue) record(ctx context.Context, tx pgx.Tx, p retention.Partition, phase retention.Phase) pgx.Row {
	return tx.QueryRow(ctx, c.tmpl.query("catalogue_record"), c.keyspace, p.Relation, c.schema, p.From, p.To, string(phase))
}

// seal makes every later write break the seal, then counts without a lock, then records the count if the seal held.
func (c *Catalogue) seal(ctx context.Context, p retention.Partition) (retention.Effect, error) {
	var seal [16]byte
	err := c.within(ctx, p.Relation, func(tx pgx.Tx, table found) error {
		if err := table.due(retention.Attached, retention.Open, retention.Sealed); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, c.about(p, "catalogue_seal")); err != nil {
			return err
		}
		return c.record(ctx, tx, p, retention.Sealed).Scan(&seal)
	})
	if err != nil {
		return retention.Effect{}, err
	}
	var entries, unsettled int64
	var honoured *time.Time
	err = c.within(ctx, p.Relation, func(tx pgx.Tx, _ found) error {
		query := c.about(p, "catalogue_count")
		return tx.QueryRow(ctx, query).Scan(&entries, &unsettled, &honoured)
	})
	if err != nil {
		return retention.Effect{}, err
	}
	return retention.Effect{}, c.within(ctx, p.Relation, func(tx pgx.Tx, _ found) error {
		return c.one(ctx, tx, "catalogue_counted", p.Relation, seal, honoured, entries, unsettled)
	})
}

// one runs a statement that changes or finds one row; another number of rows is ErrChanged.
func (c *Catalogue) one(ctx context.Context, tx pgx.Tx, query string, args ...any) error {
	tag, err := tx.Exec(ctx, c.tmpl.query(query), args...)
	if err == nil && tag.RowsAffected() != 1 {
		err = retention.ErrChanged
	}
	return err
}

// retire refuses writes to p from now on. What is still reserved or unknown in it, beyond its window and without a live holder, is removed in
// the same transaction, under a lock that no holder can renew its lease behind: nothing that stays in the table can be honoured again.
// What was read before that transaction holds in it, since any write in between would have broken the seal.
func (c *Catalogue) retire(ctx context.Context, p retention.Partition) (retention.Effect, error) {
	var effect retention.Effect
	var before found
	var clients, keys []string
	err := c.within(ctx, p.Relation, func(tx pgx.Tx, table found) error {
		before = table
		if err := table.due(retention.Attached, retention.Sealed); err != nil || table.unsettled == 0 {
			return err
		}
		return tx.QueryRow(ctx, c.about(p, "catalogue_unsettled")).Scan(&clients, &keys)
	})
	if err != nil {
		return effect, err
	}
	err = c.within(ctx, p.Relation, func(tx pgx.Tx, _ found) error {
		if before.unsettled > 0 {
			if _, err := tx.Exec(ctx, c.tmpl.query("catalogue_freeze")); err != nil {
				return err
			}
		}
		if err := c.one(ctx, tx, "catalogue_retire", p.Relation, before.oid, before.seal); err != nil || before.unsettled == 0 {
			return err
		}
		effect.Unsettled, err = c.abandon(ctx, tx, p, clients, keys)
		return err
	})
	return effect, err
}

// abandon removes the given entries and counts them. When one is honoured after all, by a live holder, the partition stays.
func (c *Catalogue) abandon(ctx context.Context, tx pgx.Tx, p retention.Partition, clients, keys []string) (int64, error) {
	tag, err := tx.Exec(ctx, c.about(p, "catalogue_abandon"), clients, keys)
	if err != nil {
		return 0, err
	}
	var held bool
	if err := tx.QueryRow(ctx, c.about(p, "catalogue_held"), clients, keys).Scan(&held); err != nil {
		return 0, err
	}
	if held {
		return 0, retention.ErrChanged
	}
	return tag.RowsAffected(), nil
}

// detach takes p out of the keyspace. While it waits for transactions that began earlier, a second transaction keeps p retiring.
func (c *Catalogue) detach(ctx context.Context, p retention.Partition) (retention.Effect, error) {
	pending := false
	err := c.within(ctx, p.Relation, func(tx pgx.Tx, table found) error {
		if pending = table.due(retention.PendingDetach, retention.Retiring) == nil; pending {
			return nil
		}
		if err := table.due(retention.Attached, retention.Retiring); err != nil {
			return err
		}
		if err := c.one(ctx, tx, "catalogue_hold", p.Relation, table.oid); err != nil {
			return err
		}
		return c.detachConcurrently(ctx, p)
	})
	if err == nil && pending {
		return c.finalize(ctx, p)
	}
	return retention.Effect{}, err
}

func (c *Catalogue) detachConcurrently(ctx context.Context, p retention.Partition) error {
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "SELECT set_config('lock_timeout', $1, false)", lockTimeout); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, c.about(p, "catalogue_detach"), pgx.QueryExecModeSimpleProtocol)
	if _, reset := conn.Exec(ctx, "RESET lock_timeout"); reset != nil {
		err = errors.Join(err, conn.Conn().Close(context.WithoutCancel(ctx))) // nobody else may get it with our setting
	}
	return err
}

func (c *Catalogue) finalize(ctx context.Context, p retention.Partition) (retention.Effect, error) {
	return retention.Effect{}, c.within(ctx, p.Relation, func(tx pgx.Tx, table found) error {
		if table.oid == 0 || table.link != retention.PendingDetach {
			return retention.ErrChanged
		}
		_, err := tx.Exec(ctx, c.about(p, "catalogue_finalize"))
		return err
	})
}

func (c *Catalogue) drop(ctx context.Context, p retention.Partition) (retention.Effect, error) {
	var effect retention.Effect
	err := c.within(ctx, p.Relation, func(tx pgx.Tx, table found) error {
		if err := table.due(retention.Detached, retention.Retiring); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, "SELECT pg_total_relation_size($1::oid)", table.oid).Scan(&effect.Bytes); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, c.about(p, "catalogue_drop")); err != nil {
			return err
		}
		return c.one(ctx, tx, "catalogue_forget", p.Relation)
	})
	return effect, err
}

func (c *Catalogue) restore(ctx context.Context, p retention.Partition) (retention.Effect, error) {
	return retention.Effect{}, c.within(ctx, p.Relation, func(tx pgx.Tx, table found) error {
		if err := table.due(retention.Attached, retention.Retiring); err != nil {
			return err
		}
		return c.one(ctx, tx, "catalogue_restore", p.Relation, table.oid)
	})
}
