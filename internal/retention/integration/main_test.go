// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
	"github.com/idempotency-dev/operator/internal/retention"
)

func TestMain(m *testing.M) {
	if dsn := os.Getenv(victimDSN); dsn != "" {
		os.Exit(victim(dsn))
	}
	pgtest.Main(m)
}

const (
	schema   = "idempotency"
	keyspace = "shop.payments"
	// holder has reserved every entry that the tests insert.
	holder = "00000000-0000-0000-0000-000000000001"
)

var parent = postgres.Relation(keyspace)

// database is one keyspace in a database of its own, whose clock the test sets.
type database struct {
	t    *testing.T
	dsn  string
	pool *pgxpool.Pool
	*postgres.Catalogue
	clock shifted
}

// shifted is the operator's clock: as far off the machine's as the database's.
type shifted struct{ by time.Duration }

func (s shifted) Now() time.Time { return time.Now().Add(s.by) }

// Wait does not wait: a test that wants a conflict to end ends it.
func (s shifted) Wait(ctx context.Context, _ time.Duration) error { return ctx.Err() }

func newDatabase(t *testing.T) *database {
	t.Helper()
	dsn := pgtest.NewDatabase(t)
	admin, err := postgres.OpenAdmin(context.Background(), dsn, schema)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if err := admin.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := admin.EnsureKeyspace(context.Background(), keyspace, ""); err != nil {
		t.Fatal(err)
	}
	return use(t, dsn)
}

func use(t *testing.T, dsn string) *database {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &database{t: t, dsn: dsn, pool: pool, Catalogue: postgres.NewCatalogue(pool, schema, keyspace)}
}

// copies makes databases that are as d is now. It ends d's connections.
func (d *database) copies() func() *database {
	d.pool.Close()
	u, err := url.Parse(d.dsn)
	if err != nil {
		d.t.Fatal("parse DSN")
	}
	return func() *database {
		name := "t_" + strings.ToLower(rand.Text())
		pgtest.Exec(d.t, pgtest.Server(d.t), "CREATE DATABASE "+name+" TEMPLATE "+strings.TrimPrefix(u.Path, "/"))
		d.t.Cleanup(func() { pgtest.Exec(d.t, pgtest.Server(d.t), "DROP DATABASE "+name+" WITH (FORCE)") })
		other := *u
		other.Path = "/" + name
		copied := use(d.t, other.String())
		copied.clock = d.clock
		return copied
	}
}

// day is noon, UTC, of the n-th day after the test's first, 2028-02-27.
func day(n int) time.Time { return time.Date(2028, 2, 27+n, 12, 0, 0, 0, time.UTC) }

// at sets the clocks of database and operator.
func (d *database) at(now time.Time) {
	d.t.Helper()
	d.clock.by = time.Until(now)
	d.exec(fmt.Sprintf(`CREATE OR REPLACE FUNCTION idempotency.now_() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
		 AS $$SELECT pg_catalog.clock_timestamp() + interval '%d milliseconds'$$`, d.clock.by.Milliseconds()))
}

// fill puts the parent's name into a test's SQL.
func fill(sql string) string {
	return strings.ReplaceAll(sql, "{{parent}}", schema+"."+parent)
}

func (d *database) exec(sql string, args ...any) {
	d.t.Helper()
	if _, err := d.pool.Exec(context.Background(), fill(sql), args...); err != nil {
		d.t.Fatalf("execute %.100q: %v", sql, err)
	}
}

// one reads a single value.
func one[T any](d *database, sql string, args ...any) T {
	d.t.Helper()
	var value T
	if err := d.pool.QueryRow(context.Background(), fill(sql), args...).Scan(&value); err != nil {
		d.t.Fatalf("query %.100q: %v", sql, err)
	}
	return value
}

// entry states, as the key store writes them.
const (
	reserved  = 1
	completed = 2
)

// insert adds an entry to the partition of the given day.
func (d *database) insert(key string, bucket time.Time, state int, expires time.Time) {
	d.t.Helper()
	d.exec(insertion("{{parent}}"), key, bucket, state, expires)
}

// insertion adds the entry $1 in the bucket of $2, in state $3, that expires at $4.
func insertion(table string) string {
	return `INSERT INTO ` + table + ` (client, key, bucket, fingerprint, state, token, holder, seed, attempts, route, lifetime, reserved_at, expires_at)
		VALUES ('c', $1, date_trunc('day', $2::timestamptz, 'UTC'), '', $3, gen_random_uuid(), '` + holder + `', gen_random_uuid(), 1, '', '1 day', $2, $4)`
}

// maintain runs a pass that must succeed.
func (d *database) maintain(settings retention.Settings) retention.Report {
	d.t.Helper()
	report, err := retention.Run(context.Background(), d, settings, d.clock)
	if err != nil {
		d.t.Fatalf("maintain: %v", err)
	}
	return report
}

// tables lists every table in the schema whose name begins with the parent's, with how it hangs there, from the catalog.
func (d *database) tables() []string {
	d.t.Helper()
	rows, err := d.pool.Query(context.Background(), `
		SELECT c.relname || CASE WHEN i.inhrelid IS NULL THEN ' detached' WHEN i.inhdetachpending THEN ' pending' ELSE '' END
		FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
		WHERE c.relnamespace = 'idempotency'::regnamespace AND c.relkind = 'r' AND c.relname LIKE $1 ORDER BY 1`, parent+"%")
	if err != nil {
		d.t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		d.t.Fatal(err)
	}
	return names
}
