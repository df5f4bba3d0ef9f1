// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/keystoretest"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// keyspaceName of the tests has what a table's name cannot have.
const keyspaceName = "Shop.payments-\"eu\""

// database is a database of its own with a keyspace in it.
type database struct {
	testing.TB
	dsn   string    // the operator's
	conn  *pgx.Conn // the operator's
	admin *postgres.Admin
}

func newDatabase(t testing.TB) *database {
	t.Helper()
	d := &database{TB: t, dsn: pgtest.NewDatabase(t)}
	var err error
	if d.admin, err = postgres.OpenAdmin(t.Context(), d.dsn, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.admin.Close)
	d.conn = connect(t, d.dsn)
	d.must(d.admin.Migrate(t.Context()))
	d.must(d.admin.EnsureKeyspace(t.Context(), keyspaceName, ""))
	return d
}

func (d *database) must(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}

func (d *database) exec(sql string) {
	d.Helper()
	if _, err := d.conn.Exec(context.Background(), sql); err != nil {
		d.Fatalf("execute %.80q: %v", sql, err)
	}
}

// partitions makes one for each of days days from first on, as retention does.
func (d *database) partitions(first time.Time, days int) {
	d.Helper()
	d.partitionsOf(keyspaceName, first, days)
}

func (d *database) partitionsOf(keyspace string, first time.Time, days int) {
	d.Helper()
	parent := "idempotency." + postgres.Relation(keyspace)
	for day := first.UTC().Truncate(24 * time.Hour); days > 0; days-- {
		next := day.Add(24 * time.Hour)
		name := parent + day.Format("_p20060102")
		d.exec(fmt.Sprintf(`CREATE TABLE %s (LIKE %s INCLUDING ALL, PRIMARY KEY (client, key));
			ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM ('%s') TO ('%s')`,
			name, parent, parent, name, day.Format(time.RFC3339), next.Format(time.RFC3339)))
		day = next
	}
}

// setClock stops the database's clock.
func (d *database) setClock(now time.Time) {
	d.Helper()
	d.exec(fmt.Sprintf(`CREATE OR REPLACE FUNCTION idempotency.now_() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
		AS 'SELECT timestamptz ''%s'''`, now.UTC().Format("2006-01-02 15:04:05.999999Z07:00")))
}

// open returns a store that connects as the role of dsn.
func (d *database) open(t testing.TB, dsn string) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(context.Background(), postgres.Config{DSN: dsn, Keyspace: keyspaceName, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// sidecar makes a role that may do what a sidecar does, and returns its DSN.
func (d *database) sidecar() string {
	d.Helper()
	role := "Sidecar " + d.name()
	d.exec(`CREATE ROLE "` + role + `" LOGIN PASSWORD 'secret'`)
	d.Cleanup(func() { pgtest.Exec(d.TB, pgtest.Server(d.TB), `DROP ROLE "`+role+`"`) })
	d.must(d.admin.Grant(d.Context(), role))
	d.Cleanup(func() { d.exec(`DROP OWNED BY "` + role + `"`) })
	return with(d.TB, d.dsn, func(u *url.URL) { u.User = url.UserPassword(role, "secret") })
}

// name of the database.
func (d *database) name() string { return parseURL(d.TB, d.dsn).Path[1:] }

func parseURL(t testing.TB, dsn string) *url.URL {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal("parse DSN")
	}
	return u
}

func with(t testing.TB, dsn string, change func(*url.URL)) string {
	t.Helper()
	u := parseURL(t, dsn)
	change(u)
	return u.String()
}

func at(t testing.TB, dsn, addr string) string {
	return with(t, dsn, func(u *url.URL) { u.Host = addr })
}

// harness is a keyspace for the conformance suite, used in the sidecar's role.
func harness(t *testing.T, prepare func(*database)) keystoretest.Harness {
	d := newDatabase(t)
	d.partitions(keystoretest.Start().Add(-24*time.Hour), 9)
	dsn := d.sidecar()
	if prepare != nil {
		prepare(d)
	}
	return keystoretest.Harness{
		Addr:     parseURL(t, dsn).Host,
		Open:     func(t testing.TB, addr string) keystore.Store { return d.open(t, at(t, dsn, addr)) },
		SetClock: func(_ testing.TB, now time.Time) { d.setClock(now) },
	}
}

// ferried is a harness whose stores send their calls in batches: all of them, or every second one.
func ferried(t *testing.T, every int) keystoretest.Harness {
	h := harness(t, nil)
	open, opened := h.Open, 0
	h.Open = func(t testing.TB, addr string) keystore.Store {
		store := open(t, addr)
		if opened++; opened%every == 0 {
			t.Cleanup(store.(*postgres.Store).Ferry())
		}
		return store
	}
	return h
}
