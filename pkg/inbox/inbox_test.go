// SPDX-License-Identifier: Apache-2.0

package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
	"github.com/idempotency-dev/operator/internal/retention"
	"github.com/idempotency-dev/operator/pkg/inbox"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type wall struct{}

func (wall) Now() time.Time                                  { return time.Now() }
func (wall) Wait(ctx context.Context, _ time.Duration) error { return ctx.Err() }

// newInbox returns the DSN of a database where a consumer is declared, in a schema whose name has to be quoted.
func newInbox(t *testing.T) (dsn string, c inbox.Consumer) {
	t.Helper()
	dsn, c = pgtest.NewDatabase(t), inbox.Consumer{Keyspace: "shop.orders", Name: "billing", Schema: `my "inbox"`}
	admin, err := postgres.OpenAdmin(t.Context(), dsn, c.Schema)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	err = errors.Join(admin.Migrate(t.Context()), admin.EnsureConsumers(t.Context(), c.Keyspace, "", map[string]time.Duration{c.Name: time.Hour}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := retention.Run(t.Context(), admin.Catalogue(postgres.ConsumersOf(c.Keyspace)), retention.Settings{}, wall{}); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, dsn, "CREATE TABLE effects (id text)")
	return dsn, c
}

// attempt is one delivery: fail is what its effect comes to.
type attempt struct {
	fail  error
	first bool
}

// attempts: an effect that fails leaves the message to the next delivery, one that succeeds to none.
func attempts() []attempt { return []attempt{{errors.New("no"), true}, {nil, true}, {nil, false}} }

func TestOnceWithPgx(t *testing.T) {
	dsn, c := newInbox(t)
	conn := pgtest.Connect(t, dsn)
	defer func() { _ = conn.Close(context.Background()) }()
	for i, a := range attempts() {
		var first bool
		err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) (err error) {
			first, err = inbox.Once(t.Context(), tx.QueryRow, c, "m", func() error {
				_, err := tx.Exec(t.Context(), "INSERT INTO effects VALUES ('m')")
				return errors.Join(err, a.fail)
			})
			return err
		})
		if first != a.first || !errors.Is(err, a.fail) {
			t.Errorf("delivery %d: first is %t, %v", i, first, err)
		}
	}
	one(t, conn)
}

func TestOnceWithDatabaseSQL(t *testing.T) {
	dsn, c := newInbox(t)
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	for i, a := range attempts() {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		first, err := inbox.Once(t.Context(), tx.QueryRowContext, c, "m", func() error {
			_, err := tx.ExecContext(t.Context(), "INSERT INTO effects VALUES ('m')")
			return errors.Join(err, a.fail)
		})
		if first != a.first || !errors.Is(err, a.fail) {
			t.Errorf("delivery %d: first is %t, %v", i, first, err)
		}
		end := tx.Commit
		if err != nil {
			end = tx.Rollback
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
	conn := pgtest.Connect(t, dsn)
	defer func() { _ = conn.Close(context.Background()) }()
	one(t, conn)
}

// one wants one effect.
func one(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	var n int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM effects").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d effects, want 1; %v", n, err)
	}
}

// TestNotDeclared: a consumer that no policy names has no effect, and is told so.
func TestNotDeclared(t *testing.T) {
	dsn, c := newInbox(t)
	conn := pgtest.Connect(t, dsn)
	defer func() { _ = conn.Close(context.Background()) }()
	c.Name = "nobody"
	first, err := inbox.Once(t.Context(), conn.QueryRow, c, "m", func() error {
		t.Error("it has an effect")
		return nil
	})
	var server *pgconn.PgError
	if first || !errors.As(err, &server) || server.Code != "IK005" || inbox.Retryable(err) {
		t.Errorf("first is %t, %v, want IK005", first, err)
	}
}

func TestRetryable(t *testing.T) {
	for code, want := range map[string]bool{"40001": true, "40P01": true, "55P03": true, "55000": true, "23505": false, "IK005": false} {
		if got := inbox.Retryable(fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: code})); got != want {
			t.Errorf("%s: %t, want %t", code, got, want)
		}
	}
	if inbox.Retryable(errors.New("no server said this")) || inbox.Retryable(nil) {
		t.Error("what no server said is retryable")
	}
}
