// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/keystoretest"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
)

// connect opens a connection that the test's end closes.
func connect(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	conn := pgtest.Connect(t, dsn)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// TestSidecarMayOnlyCall logs in as the sidecar and tries everything else.
func TestSidecarMayOnlyCall(t *testing.T) {
	d := newDatabase(t)
	d.partitions(keystoretest.Start(), 1)
	conn := connect(t, d.sidecar())
	relation := postgres.Relation(keyspaceName)
	for _, sql := range []string{
		"SELECT * FROM idempotency." + relation,
		"SELECT * FROM idempotency." + relation + keystoretest.Start().Format("_p20060102"),
		"DELETE FROM idempotency." + relation,
		"INSERT INTO idempotency.holders VALUES (gen_random_uuid(), 'infinity')",
		"SELECT * FROM idempotency.keyspaces",
		"SELECT * FROM idempotency.holders",
		"SELECT * FROM idempotency.partitions",
		"SELECT * FROM idempotency.migrations",
		"TRUNCATE idempotency." + relation,
		"DROP TABLE idempotency." + relation,
		"CREATE TABLE idempotency.mine ()",
		"CREATE FUNCTION idempotency.now_(int) RETURNS timestamptz LANGUAGE sql AS 'SELECT now()'",
		"CREATE OR REPLACE FUNCTION idempotency.now_() RETURNS timestamptz LANGUAGE sql AS 'SELECT now()'",
		"SELECT idempotency.now_()",
		"SELECT idempotency.enter()",
		"SELECT idempotency.hold(gen_random_uuid(), '1h', now(), NULL)",
		"SELECT idempotency.bucket_for('pg_class'::regclass, now())",
		"SELECT idempotency." + relation + "_settle('c', 'k', gen_random_uuid(), false, NULL, NULL, NULL, NULL)",
	} {
		if _, err := conn.Exec(t.Context(), sql); sqlState(err) != "42501" {
			t.Errorf("%s: %v, want insufficient_privilege", sql, err)
		}
	}
}

// TestEveryFunctionIsClosedToThePublic: none, of the schema or of the keyspace, may be called without a grant.
func TestEveryFunctionIsClosedToThePublic(t *testing.T) {
	d := newDatabase(t)
	conn := connect(t, d.dsn)
	rows, err := conn.Query(t.Context(), `
		SELECT p.proname::text FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
		WHERE p.pronamespace = 'idempotency'::regnamespace AND a.grantee = 0`)
	d.must(err)
	open, err := pgx.CollectRows(rows, pgx.RowTo[string])
	d.must(err)
	if len(open) > 0 {
		t.Errorf("functions that anybody may call: %v", open)
	}
}

// TestOwnersRightsArePinned: every function that runs with its owner's rights has a search path that ends in pg_temp.
func TestOwnersRightsArePinned(t *testing.T) {
	d := newDatabase(t)
	conn := connect(t, d.dsn)
	rows, err := conn.Query(t.Context(), `
		SELECT proname::text FROM pg_proc
		WHERE pronamespace = 'idempotency'::regnamespace AND prosecdef
			AND NOT EXISTS (SELECT FROM unnest(proconfig) c WHERE c LIKE 'search_path=pg_catalog, %pg_temp')`)
	d.must(err)
	loose, err := pgx.CollectRows(rows, pgx.RowTo[string])
	d.must(err)
	if len(loose) > 0 {
		t.Errorf("functions without a pinned search path: %v", loose)
	}
}

// TestSidecarCannotShadow: what a sidecar's session puts in its own way does not reach the functions.
func TestSidecarCannotShadow(t *testing.T) {
	d := newDatabase(t)
	d.partitions(keystoretest.Start(), 1)
	d.setClock(keystoretest.Start())
	conn := connect(t, d.sidecar())
	for _, sql := range []string{
		"CREATE TEMP TABLE holders (holder uuid, expires_at timestamptz)",
		"CREATE FUNCTION pg_temp.now_() RETURNS timestamptz LANGUAGE sql AS 'SELECT timestamptz ''2001-01-01'''",
		"CREATE FUNCTION pg_temp.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT timestamptz ''2001-01-01'''",
		"SET search_path = pg_temp, idempotency, public",
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if got := call(t, conn, keystore.Token{1}); got != keystore.New {
		t.Errorf("outcome %d, want new", got)
	}
	if got := call(t, conn, keystore.Token{2}); got != keystore.InFlight {
		t.Errorf("outcome %d, want in flight", got)
	}
}

// call reserves one and the same key by plain SQL.
func call(t testing.TB, conn *pgx.Conn, token keystore.Token) keystore.Outcome {
	t.Helper()
	outcome, err := tryCall(t.Context(), conn, token)
	if err != nil {
		t.Fatal(err)
	}
	return outcome
}

func tryCall(ctx context.Context, conn *pgx.Conn, token keystore.Token) (keystore.Outcome, error) {
	var outcome keystore.Outcome
	sql := "SELECT outcome FROM idempotency." + postgres.Relation(keyspaceName) +
		"_reserve('c', 'k', '\\x00', $1, '00000000-0000-0000-0000-000000000001', '1h', '1h', 'r', false, false, 1)"
	err := conn.QueryRow(ctx, sql, [16]byte(token)).Scan(&outcome)
	return outcome, err
}

// TestGrant: for the given keyspaces or for all, for the future, written once.
func TestGrant(t *testing.T) {
	d := newDatabase(t)
	d.partitions(keystoretest.Start(), 1)
	d.setClock(keystoretest.Start())
	d.must(d.admin.EnsureKeyspace(t.Context(), "other", ""))
	role := "reader " + d.name()
	d.exec(`CREATE ROLE "` + role + `" LOGIN PASSWORD 'secret'`)
	t.Cleanup(func() { pgtest.Exec(t, pgtest.Server(t), `DROP ROLE "`+role+`"`) })
	t.Cleanup(func() { d.exec(`DROP OWNED BY "` + role + `"`) })
	dsn := with(t, d.dsn, func(u *url.URL) { u.User = url.UserPassword(role, "secret") })
	check := func(keyspace string, want error) {
		t.Helper()
		s, err := postgres.Open(t.Context(), postgres.Config{DSN: dsn, Keyspace: keyspace})
		d.must(err)
		defer s.Close()
		if err := s.Check(t.Context()); !errors.Is(err, want) {
			t.Errorf("check %s: %v, want %v", keyspace, err, want)
		}
	}
	check(keyspaceName, keystore.ErrPermissionDenied)
	d.must(d.admin.Grant(t.Context(), role, keyspaceName))
	check(keyspaceName, nil)
	check("other", keystore.ErrPermissionDenied)
	d.must(d.admin.Grant(t.Context(), role))
	check("other", keystore.ErrUnavailable) // it has no partition
	check("unknown", keystore.ErrSchemaOutdated)

	if err := d.admin.Grant(t.Context(), "nobody knows"); !errors.Is(err, keystore.ErrAuthFailed) || strings.Contains(err.Error(), "nobody") {
		t.Errorf("grant to a role that does not exist: %v", err)
	}
	d.must(d.admin.Grant(t.Context(), parseURL(t, d.dsn).User.Username())) // the owner's own role, for both uses
}
