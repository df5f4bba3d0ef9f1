// SPDX-License-Identifier: Apache-2.0

// Package consumers tests package inbox with real brokers, and with consumers that are processes and are killed.
package consumers

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
	"github.com/idempotency-dev/operator/internal/retention"
	"github.com/idempotency-dev/operator/pkg/inbox"
)

var messages = flag.Int("messages", 10_000, "messages of the load, beside a fifth of duplicates")

// workerEnv holds a worker's configuration: this program is also that of the consumers.
const workerEnv = "CONSUMERS_TEST_WORKER"

func TestMain(m *testing.M) {
	config, isWorker := os.LookupEnv(workerEnv)
	if !isWorker {
		pgtest.Main(m)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := work(ctx, config); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var billing = inbox.Consumer{Keyspace: "shop.orders", Name: "billing"}

// wall is the operator's clock.
type wall struct{}

func (wall) Now() time.Time                                  { return time.Now() }
func (wall) Wait(ctx context.Context, _ time.Duration) error { return ctx.Err() }

// ledger is the app's database.
type ledger struct {
	*testing.T
	dsn  string
	conn *pgx.Conn
}

func newLedger(t *testing.T) *ledger {
	t.Helper()
	l := &ledger{T: t, dsn: pgtest.NewDatabase(t)}
	admin, err := postgres.OpenAdmin(t.Context(), l.dsn, "")
	l.must(err)
	defer admin.Close()
	l.must(admin.Migrate(t.Context()))
	l.must(admin.EnsureConsumers(t.Context(), billing.Keyspace, "", map[string]time.Duration{billing.Name: 24 * time.Hour}))
	_, err = retention.Run(t.Context(), admin.Catalogue(postgres.ConsumersOf(billing.Keyspace)), retention.Settings{}, wall{})
	l.must(err)
	l.conn = pgtest.Connect(t, l.dsn)
	t.Cleanup(func() { _ = l.conn.Close(context.Background()) })
	_, err = l.conn.Exec(t.Context(), "CREATE TABLE effects (id text NOT NULL); CREATE TABLE outcomes (first boolean)")
	l.must(err)
	return l
}

func (l *ledger) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// effects counts them, and the messages that have any.
func (l *ledger) effects() (all, distinct int) {
	l.Helper()
	l.must(l.conn.QueryRow(l.Context(), "SELECT count(*), count(DISTINCT id) FROM effects").Scan(&all, &distinct))
	return all, distinct
}

// until polls.
func (l *ledger) until(what string, done func() bool) {
	l.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Minute)
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			l.Fatalf("never: %s", what)
		}
	}
}
