// SPDX-License-Identifier: Apache-2.0

// Command retention measures what retiring a day of entries costs, beside deleting the same rows, and what it does to callers meanwhile; and what
// maintaining many keyspaces costs. It prints one line "figure ..." per result and fails only when something went wrong.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/localpg"
)

// options of a run.
type options struct {
	// entries of the day that is retired, and bytes of each one's body.
	entries, body int
	// rounds of retiring and deleting, in turns.
	rounds int
	// clients that reserve and complete meanwhile.
	clients int
	// keyspaces on one server.
	keyspaces int
	// quiet is how long the clients are measured without maintenance.
	quiet time.Duration
	// version is the major version of the server.
	version string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench retention:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var o options
	flags := flag.NewFlagSet("retention", flag.ContinueOnError)
	flags.IntVar(&o.entries, "entries", 10_000_000, "entries of the day that is retired")
	flags.IntVar(&o.body, "body", 512, "bytes of each entry's body, a multiple of 16")
	flags.IntVar(&o.rounds, "rounds", 3, "rounds of retiring and deleting, in turns")
	flags.IntVar(&o.clients, "clients", 64, "clients that reserve and complete meanwhile")
	flags.IntVar(&o.keyspaces, "keyspaces", 1000, "keyspaces on one server")
	flags.DurationVar(&o.quiet, "quiet", 5*time.Second, "how long clients are measured without maintenance")
	flags.StringVar(&o.version, "postgres", os.Getenv("POSTGRES_VERSION"), "major version of the server")
	if err := flags.Parse(args); err != nil {
		return err
	}
	server, err := localpg.Start(ctx, localpg.Options{Version: o.version, Settings: map[string]string{
		"shared_buffers": "1GB", "max_wal_size": "8GB", "max_connections": "200", "max_locks_per_transaction": "256",
	}})
	if err != nil {
		return fmt.Errorf("start server: %w", err)
	}
	defer server.Stop()
	b := &bench{options: o, out: out, dsn: server.DSN("postgres")}
	if b.pool, err = pgxpool.New(ctx, b.dsn); err != nil {
		return errors.New("open pool")
	}
	defer b.pool.Close()
	if b.admin, err = postgres.OpenAdmin(ctx, b.dsn, ""); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	defer b.admin.Close()
	if err := b.admin.Migrate(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if o.rounds > 0 {
		if err := b.compare(ctx); err != nil {
			return err
		}
	}
	if o.keyspaces > 0 {
		return b.many(ctx)
	}
	return nil
}

// bench is one run.
type bench struct {
	options
	out   io.Writer
	dsn   string
	pool  *pgxpool.Pool
	admin *postgres.Admin
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.out, format+"\n", args...) }

// figure prints a result for scripts. op is how the value compares with its target when all is well.
func (b *bench) figure(name string, value float64, op string, target float64) {
	ok := op == ">=" && value >= target || op == "<=" && value <= target
	word := "short"
	if ok {
		word = "ok"
	}
	b.say("figure %s %.3g target %s%g %s", name, value, op, target, word)
}

func median[T cmp.Ordered](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
