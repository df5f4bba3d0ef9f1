// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/keystoretest"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
)

// TestRaisedIsolation: the store is right whoever has raised the default isolation level.
func TestRaisedIsolation(t *testing.T) {
	for _, row := range []struct {
		name    string
		prepare func(*database)
	}{
		{"Role", func(d *database) {
			d.exec(fmt.Sprintf("ALTER ROLE %q SET default_transaction_isolation = 'serializable'", "Sidecar "+d.name()))
		}},
		{"Database", func(d *database) {
			d.exec("ALTER DATABASE " + d.name() + " SET default_transaction_isolation = 'repeatable read'")
		}},
		{"Server", func(d *database) {
			alterSystem(d.TB, "default_transaction_isolation", "serializable")
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			keystoretest.Run(t, func(t *testing.T) keystoretest.Harness { return harness(t, row.prepare) },
				"Life", "OwnersOnly", "RaceMidnight", "RaceOwnership", "LostAnswers")
		})
	}
}

// alterSystem changes a setting of the server until the test's end.
func alterSystem(t testing.TB, setting, value string) {
	t.Helper()
	change := func(sql, want string) {
		conn := pgtest.Connect(t, pgtest.Server(t))
		defer func() { _ = conn.Close(context.Background()) }()
		for _, sql := range []string{sql, "SELECT pg_reload_conf()"} {
			if _, err := conn.Exec(context.Background(), sql); err != nil {
				t.Fatal(err)
			}
		}
		await(t, setting+" has changed", func() bool {
			fresh := pgtest.Connect(t, pgtest.Server(t))
			defer func() { _ = fresh.Close(context.Background()) }()
			var got string
			if err := fresh.QueryRow(context.Background(), "SELECT setting FROM pg_settings WHERE name = $1", setting).Scan(&got); err != nil {
				t.Fatal(err)
			}
			return (got == value) == (want == value)
		})
	}
	change(fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", setting, value), value)
	t.Cleanup(func() { change("ALTER SYSTEM RESET "+setting, "") })
}

// await polls until done.
func await(t testing.TB, what string, done func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never: %s", what)
		}
	}
}

// singleStatement is the textbook's reserve, with the lock, as one statement: its snapshot is older than its lock.
const singleStatement = `
CREATE OR REPLACE FUNCTION idempotency.%[1]s_reserve(
	p_client text, p_key text, p_fingerprint bytea, p_token uuid, p_holder uuid, p_lease interval, p_window interval, p_route text,
	p_take_over boolean, p_newest boolean, p_patience integer
) RETURNS idempotency.decision LANGUAGE sql VOLATILE AS $$
	WITH locked AS MATERIALIZED (
		SELECT pg_advisory_xact_lock(hashtextextended(p_key, hashtextextended(p_client, 0))), idempotency.now_() AS now_at
	), inserted AS (
		INSERT INTO idempotency.%[1]s
			(client, key, bucket, fingerprint, state, token, holder, seed, attempts, route, lifetime, reserved_at, expires_at)
		SELECT p_client, p_key, date_trunc('day', now_at, 'UTC'), p_fingerprint, 1, p_token, p_holder, gen_random_uuid(), 1, p_route, p_window,
			now_at, now_at + p_window
		FROM locked
		WHERE NOT EXISTS (SELECT FROM idempotency.%[1]s t WHERE t.client = p_client AND t.key = p_key)
		RETURNING seed
	)
	SELECT (CASE WHEN EXISTS (SELECT FROM inserted) THEN 1 ELSE 5 END, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::idempotency.decision
$$`

// TestMidnight plays the interleaving that a primary key with the bucket in it, one single statement and a transaction's own snapshot all get
// wrong: two callers of one key, before and after midnight, the second of which waits for the first's lock.
func TestMidnight(t *testing.T) {
	relation := postgres.Relation(keyspaceName)
	for _, row := range []struct {
		reason    string
		prepare   string
		isolation pgx.TxIsoLevel
		want      keystore.Outcome
	}{
		{"ours is right", "SELECT", pgx.ReadCommitted, keystore.InFlight},
		{"one statement is not: its snapshot is older than its lock", fmt.Sprintf(singleStatement, relation), pgx.ReadCommitted, keystore.New},
		{
			"ours would not be at REPEATABLE READ, were it not to refuse",
			"CREATE OR REPLACE FUNCTION idempotency.enter() RETURNS boolean LANGUAGE sql AS 'SELECT true'", pgx.RepeatableRead, keystore.New,
		},
	} {
		t.Run(strings.ReplaceAll(row.reason, " ", "_"), func(t *testing.T) {
			d := newDatabase(t)
			d.partitions(keystoretest.Start(), 2)
			d.exec(row.prepare)
			// So that the callers write nothing but the entry.
			d.exec("SELECT idempotency.keep_alive('00000000-0000-0000-0000-000000000001', '10 years')")
			d.exec("UPDATE idempotency.keyspaces SET newest_bucket = 'infinity'")
			midnight := keystoretest.Start().Truncate(24 * time.Hour).Add(24 * time.Hour)
			d.setClock(midnight.Add(-time.Microsecond))
			begin := func() (*pgx.Conn, pgx.Tx) {
				conn := connect(t, d.dsn)
				tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: row.isolation})
				d.must(err)
				return conn, tx
			}
			first, firstTx := begin()
			second, secondTx := begin()
			if got := call(t, first, keystore.Token{1}); got != keystore.New {
				t.Fatalf("first caller: %d", got)
			}
			d.setClock(midnight)
			result, failed := make(chan keystore.Outcome, 1), make(chan error, 1)
			go func() {
				outcome, err := tryCall(t.Context(), second, keystore.Token{2})
				result <- outcome
				failed <- err
			}()
			await(t, "the second caller waits", func() bool { return waiting(t, d, second.PgConn().PID()) })
			d.must(firstTx.Commit(t.Context()))
			if got := <-result; got != row.want {
				t.Errorf("second caller: outcome %d, want %d", got, row.want)
			}
			d.must(<-failed)
			d.must(secondTx.Rollback(t.Context()))
		})
	}
}

// waiting says whether the session waits for an advisory lock.
func waiting(t testing.TB, d *database, pid uint32) bool {
	conn := pgtest.Connect(t, d.dsn)
	defer func() { _ = conn.Close(context.Background()) }()
	var found bool
	err := conn.QueryRow(context.Background(), "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND locktype = 'advisory' AND NOT granted)", pid).Scan(&found)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestRefusesOtherIsolation: called in somebody's own transaction, a function refuses rather than guess.
func TestRefusesOtherIsolation(t *testing.T) {
	d := newDatabase(t)
	d.partitions(keystoretest.Start(), 1)
	relation := postgres.Relation(keyspaceName)
	id := "gen_random_uuid()"
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		for _, function := range []string{
			relation + "_reserve('c', 'k', '', " + id + ", " + id + ", '1s', '1s', '', false, false, 0)",
			relation + "_complete('c', 'k', " + id + ", NULL, 200, NULL, NULL, false)",
			relation + "_reserve_many('{c}', '{k}', '{x}', '{00000000-0000-0000-0000-000000000002}', " + id + ", '1s', '{1s}', '{r}')",
			relation + "_complete_many('{c}', '{k}', '{00000000-0000-0000-0000-000000000002}', '{NULL}', '{200}', '{NULL}', '{NULL}')",
			relation + "_release('c', 'k', " + id + ", false)",
			relation + "_mark_unknown('c', 'k', " + id + ", false)",
			relation + "_settle('c', 'k', " + id + ", false, NULL, NULL, NULL, NULL)",
			relation + "_check()",
			"keep_alive(" + id + ", '1s')",
			"retire(" + id + ")",
		} {
			conn := connect(t, d.dsn)
			tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
			d.must(err)
			if _, err := tx.Exec(t.Context(), "SELECT idempotency."+function); sqlState(err) != "IK001" {
				t.Errorf("%s at %s: %v, want a refusal", function, level, err)
			}
		}
	}
}

// TestDurableThoughTheRoleIsNot: a role's asynchronous commit does not lose reservations.
func TestDurableThoughTheRoleIsNot(t *testing.T) {
	d := newDatabase(t)
	conn := connect(t, d.dsn)
	tx, err := conn.Begin(t.Context())
	d.must(err)
	var got string
	for _, sql := range []string{"SET LOCAL synchronous_commit = off", "SELECT idempotency.keep_alive(gen_random_uuid(), '1s')"} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	d.must(tx.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&got))
	if got != "on" {
		t.Errorf("synchronous_commit = %s", got)
	}
}
