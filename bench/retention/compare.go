// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/retention"
)

const (
	retired = "bench.retired"
	deleted = "bench.deleted"
)

// round is what one round came to.
type round struct {
	seal, retire, delete time.Duration
	// removal is what the file system takes for plain files of the size.
	removal time.Duration
	// quiet and during are the clients' 99th percentiles.
	quiet, during time.Duration
}

// compare retires a day of entries, and deletes the same rows from a table of the same shape, in turns, both while clients work.
func (b *bench) compare(ctx context.Context) error {
	for _, keyspace := range []string{retired, deleted} {
		if err := b.admin.EnsureKeyspace(ctx, keyspace, ""); err != nil {
			return err
		}
	}
	if err := b.pass(ctx); err != nil {
		return err
	}
	var speedups, slowdowns []float64
	for n := range b.rounds {
		r, err := b.round(ctx, time.Now().UTC().Truncate(retention.Day).AddDate(0, 0, -3-n))
		if err != nil {
			return fmt.Errorf("round %d: %w", n+1, err)
		}
		speedups = append(speedups, r.delete.Seconds()/r.retire.Seconds())
		slowdowns = append(slowdowns, r.during.Seconds()/r.quiet.Seconds())
		b.say("round %d: retired in %s (sealed before, in %s; the files alone are removed in %s), deleted and vacuumed in %s; p99 of %d clients: quiet %s, during the drop %s",
			n+1, r.retire.Round(time.Millisecond), r.seal.Round(time.Millisecond), r.removal.Round(time.Millisecond), r.delete.Round(time.Millisecond), b.clients, r.quiet, r.during)
	}
	b.figure("retention.retire.vs_delete", median(speedups), ">=", 100)
	b.figure("retention.drop.p99_ratio", median(slowdowns), "<=", 1.5)
	return nil
}

// pass maintains the keyspace that is retired.
func (b *bench) pass(ctx context.Context) error {
	report, err := retention.Run(ctx, b.admin.Catalogue(retired), retention.Settings{CreateAhead: 7}, retention.SystemClock{})
	if err == nil && !report.Ready() {
		err = fmt.Errorf("pass left problems: %v", report.Problems)
	}
	return err
}

func (b *bench) round(ctx context.Context, day time.Time) (round, error) {
	var r round
	part := retention.Partition{Relation: retention.Name(postgres.Relation(retired), day), From: day, To: day.Add(retention.Day)}
	if err := b.load(ctx, retired, part); err != nil {
		return r, err
	}
	copied := part
	copied.Relation = retention.Name(postgres.Relation(deleted), day)
	if err := b.load(ctx, deleted, copied); err != nil {
		return r, err
	}
	if _, err := b.pool.Exec(ctx, "CREATE INDEX ON idempotency."+copied.Relation+" (expires_at)"); err != nil {
		return r, err
	}
	if _, err := b.pool.Exec(ctx, "CHECKPOINT"); err != nil {
		return r, err
	}
	if err := b.cool(ctx, copied.Relation); err != nil {
		return r, err
	}
	var err error
	if r.removal, err = b.removal(ctx, part.Relation); err != nil {
		return r, err
	}
	b.say("%d entries in each of two tables: measuring", b.entries)
	callers, err := b.call(ctx)
	if err != nil {
		return r, err
	}
	defer func() { _ = callers.stop() }()
	if err := b.retire(ctx, callers, part, &r); err != nil {
		return r, err
	}
	start := time.Now()
	if err := b.deleteRows(ctx, copied.Relation); err != nil {
		return r, err
	}
	r.delete = time.Since(start)
	if err := callers.stop(); err != nil {
		return r, err
	}
	_, err = b.pool.Exec(ctx, "DROP TABLE idempotency."+copied.Relation)
	return r, err
}

// load makes a partition and fills it with completed entries whose windows are over.
func (b *bench) load(ctx context.Context, keyspace string, part retention.Partition) error {
	if _, err := b.admin.Catalogue(keyspace).Do(ctx, retention.Step{Action: retention.Create, Partition: part}); err != nil {
		return fmt.Errorf("make partition: %w", err)
	}
	_, err := b.pool.Exec(ctx, `INSERT INTO idempotency.`+part.Relation+`
		(client, key, bucket, fingerprint, state, token, holder, seed, attempts, route, lifetime, reserved_at, expires_at, status, header, body)
		SELECT 'client-' || i % 1000, gen_random_uuid()::text, $1, sha256(i::text::bytea), 2, gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 1,
			'create-payment', '1 day', $1::timestamptz + i * interval '1 day' / $2::bigint, $1::timestamptz + interval '1 day' + i * interval '1 day' / $2::bigint,
			201, '\x7b7d', decode(repeat(md5(i::text), $3), 'hex')
		FROM generate_series(1, $2::bigint) AS i`, part.From, b.entries, b.body/16)
	if err != nil {
		return fmt.Errorf("load entries: %w", err)
	}
	_, err = b.pool.Exec(ctx, "VACUUM (ANALYZE) idempotency."+part.Relation)
	return err
}

// retire seals the partition, as a pass does when its day is over, and then retires it, as a pass does when its last window is.
func (b *bench) retire(ctx context.Context, callers *callers, part retention.Partition, r *round) error {
	start := time.Now()
	if err := (retention.SystemClock{}).Wait(ctx, b.quiet); err != nil {
		return err
	}
	quiet := callers.between(start, time.Now())
	start = time.Now()
	if _, err := b.admin.Catalogue(retired).Do(ctx, retention.Step{Action: retention.Seal, Partition: part}); err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	r.seal = time.Since(start)
	if err := b.cool(ctx, part.Relation); err != nil {
		return err
	}
	start = time.Now()
	if err := b.pass(ctx); err != nil {
		return err
	}
	r.retire = time.Since(start)
	// Latencies of the drop and of the second after it: the drop alone is too short for a percentile.
	if err := (retention.SystemClock{}).Wait(ctx, time.Second); err != nil {
		return err
	}
	during := callers.between(start, time.Now())
	var err error
	if r.quiet, r.during, err = percentiles(quiet, during); err != nil {
		return err
	}
	var left int
	if err := b.pool.QueryRow(ctx, "SELECT count(*) FROM pg_class WHERE relname = $1", part.Relation).Scan(&left); err != nil || left > 0 {
		return fmt.Errorf("the partition was not dropped: %w", err)
	}
	return nil
}

// deleteRows is the textbook: batches of 10,000 by the index on expires_at, then VACUUM.
func (b *bench) deleteRows(ctx context.Context, table string) error {
	for rows := 0; ; {
		tag, err := b.pool.Exec(ctx, `DELETE FROM idempotency.`+table+` WHERE ctid = ANY (ARRAY(
			SELECT ctid FROM idempotency.`+table+` WHERE expires_at < now() ORDER BY expires_at LIMIT 10000))`)
		if err != nil {
			return err
		}
		rows += int(tag.RowsAffected())
		if tag.RowsAffected() == 0 && rows != b.entries {
			return fmt.Errorf("deleted %d of %d rows", rows, b.entries)
		}
		if tag.RowsAffected() == 0 {
			break
		}
	}
	_, err := b.pool.Exec(ctx, "VACUUM idempotency."+table)
	return err
}
