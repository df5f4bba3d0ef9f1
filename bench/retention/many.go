// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/retention"
)

// passes at once, as in the operator.
const passes = 2

// counter counts the queries that are sent.
type counter struct{ n atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}

func (*counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// many maintains many keyspaces: with nothing to do, and with one partition to make and one to drop in each.
func (b *bench) many(ctx context.Context) error {
	b.say("making %d keyspaces", b.keyspaces)
	old := time.Now().UTC().Truncate(retention.Day).AddDate(0, 0, -5)
	err := b.each(func(name string) error {
		if err := b.admin.EnsureKeyspace(ctx, name, ""); err != nil {
			return err
		}
		part := retention.Partition{Relation: retention.Name(postgres.Relation(name), old), From: old, To: old.Add(retention.Day)}
		catalogue := b.admin.Catalogue(name)
		if _, err := catalogue.Do(ctx, retention.Step{Action: retention.Create, Partition: part}); err != nil {
			return err
		}
		// All but the last, so that the pass that is measured has one to make.
		for n := range 7 {
			from := time.Now().UTC().Truncate(retention.Day).AddDate(0, 0, n)
			part := retention.Partition{Relation: retention.Name(postgres.Relation(name), from), From: from, To: from.Add(retention.Day)}
			if _, err := catalogue.Do(ctx, retention.Step{Action: retention.Create, Partition: part}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("make keyspaces: %w", err)
	}
	config, err := pgxpool.ParseConfig(b.dsn)
	if err != nil {
		return errors.New("parse DSN")
	}
	queries := &counter{}
	config.ConnConfig.Tracer, config.MaxConns = queries, 8
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return errors.New("open pool")
	}
	defer pool.Close()
	run := func(name string, count int) error {
		report, err := retention.Run(ctx, postgres.NewCatalogue(pool, "idempotency", name), settings(), retention.SystemClock{})
		if err == nil && (!report.Ready() || len(report.Created) != count || len(report.Dropped) != count) {
			err = fmt.Errorf("%d created, %d dropped, problems %v", len(report.Created), len(report.Dropped), report.Problems)
		}
		return err
	}
	start := time.Now()
	if err := b.each(func(name string) error { return run(name, 1) }); err != nil {
		return fmt.Errorf("passes with a partition to make and one to drop: %w", err)
	}
	b.say("%d keyspaces with one partition to make and one to drop: %d queries", b.keyspaces, queries.n.Load())
	b.figure(fmt.Sprintf("retention.keyspaces%d.busy_seconds", b.keyspaces), time.Since(start).Seconds(), "<=", 300)

	start = time.Now()
	states, err := b.admin.Survey(ctx)
	if err != nil {
		return err
	}
	surveyed, before := time.Now(), queries.n.Load()
	var passed atomic.Int64
	err = b.each(func(name string) error {
		if _, idle := retention.Idle(states[name], settings(), surveyed); idle {
			return nil
		}
		passed.Add(1)
		return run(name, 0)
	})
	if err != nil {
		return fmt.Errorf("passes with nothing to do: %w", err)
	}
	b.say("%d keyspaces with nothing to do: one survey, %d passes with %d queries", b.keyspaces, passed.Load(), queries.n.Load()-before)
	b.figure(fmt.Sprintf("retention.keyspaces%d.idle_seconds", b.keyspaces), time.Since(start).Seconds(), "<=", 10)
	return nil
}

func settings() retention.Settings { return retention.Settings{CreateAhead: 7} }

// each calls fn for every keyspace, a few at a time, and returns the first error.
func (b *bench) each(fn func(name string) error) error {
	var group sync.WaitGroup
	var next atomic.Int64
	errs := make([]error, passes)
	for i := range passes {
		group.Go(func() {
			for errs[i] == nil {
				n := next.Add(1)
				if n > int64(b.keyspaces) {
					return
				}
				errs[i] = fn(fmt.Sprintf("bench.n%04d", n))
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}
