// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"regexp"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// recipe is the SQL of docs/reconcile.md, in its order: the table, the question, the end of an execution.
func recipe(t *testing.T) (table, ask, finish string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/reconcile.md")
	must(t, err)
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllSubmatch(page, -1)
	if len(blocks) != 3 {
		t.Fatalf("docs/reconcile.md has %d blocks of SQL, want the table, the question and the end", len(blocks))
	}
	return string(blocks[0][1]), string(blocks[1][1]), string(blocks[2][1])
}

// ledger is an app that follows the recipe. Executions stop at before, with their transaction open, and at after, when it has ended.
type ledger struct {
	t             *testing.T
	pool          *pgxpool.Pool
	ask, finish   string
	before, after chan func() // what they are to do there
}

func (l *ledger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	client, key, attempt := r.Header.Get("X-Client-Id"), r.Header.Get("Idempotency-Key"), r.Header.Get("Idempotency-Reservation")
	if r.Method == http.MethodGet {
		var body *string
		switch err := l.pool.QueryRow(r.Context(), l.ask, client, key, attempt).Scan(&body); {
		case err != nil:
			w.WriteHeader(http.StatusServiceUnavailable)
		case body == nil:
			w.WriteHeader(http.StatusNotFound)
		default:
			_, _ = io.WriteString(w, *body)
		}
		return
	}
	ctx := context.WithoutCancel(r.Context()) // the app does not notice that its sidecar is gone
	tx, err := l.pool.Begin(ctx)
	if err != nil {
		l.t.Error(err)
		return
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := tx.Exec(ctx, "INSERT INTO payments DEFAULT VALUES"); err != nil {
		l.t.Error(err)
		return
	}
	(<-l.before)()
	tag, err := tx.Exec(ctx, l.finish, client, key, attempt, `{"paid": true}`)
	if err == nil && tag.RowsAffected() == 1 {
		err = tx.Commit(ctx)
	}
	(<-l.after)()
	if err != nil || tag.RowsAffected() != 1 {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, `{"paid": true}`)
}

// TestReconcileRecipe: with the SQL of the documentation there is one effect, whether the first execution has committed when its sidecar is killed, or
// comes to its end only after the app was asked, or after the retry.
func TestReconcileRecipe(t *testing.T) {
	table, ask, finish := recipe(t)
	run := func(t *testing.T, steps func(w *world, l *ledger, retry func() reply)) {
		l := &ledger{t: t, ask: ask, finish: finish, before: make(chan func(), 10), after: make(chan func(), 10)}
		w := newWorld(t, l.ServeHTTP, func(c *proxyconfig.Config) {
			c.Routes[0].OnUnknownOutcome, c.Routes[0].ReconcilePath = "Reconcile", "/reconcile"
		})
		var err error
		l.pool, err = pgxpool.New(t.Context(), w.dsn)
		must(t, err)
		t.Cleanup(l.pool.Close)
		_, err = l.pool.Exec(t.Context(), table+"; CREATE TABLE payments (id serial)")
		must(t, err)
		second := w.proxy("b")
		steps(w, l, func() (got reply) {
			eventually(t, "the first sidecar's lease ends", func() bool {
				got = second.post("k", `{}`)
				return got.status != http.StatusConflict
			})
			return got
		})
		if again := second.post("k", `{}`); again.status != http.StatusOK || !again.replayed() {
			t.Errorf("afterwards: %d %s", again.status, again.body)
		}
		var n int
		must(t, l.pool.QueryRow(t.Context(), "SELECT count(*) FROM payments").Scan(&n))
		if n != 1 {
			t.Errorf("%d payments", n)
		}
	}
	pass := func() {}

	t.Run("it had committed", func(t *testing.T) {
		run(t, func(w *world, l *ledger, retry func() reply) {
			first := w.proxy("a")
			l.before <- pass
			l.after <- func() { must(t, first.cmd.Process.Kill()) }
			first.post("k", `{}`)
			if got := retry(); got.status != http.StatusOK || !got.replayed() {
				t.Errorf("retry: %d %s", got.status, got.body)
			}
		})
	})
	t.Run("it ends after the retry", func(t *testing.T) {
		run(t, func(w *world, l *ledger, retry func() reply) {
			first := w.proxy("a")
			resume, ended := make(chan struct{}), make(chan struct{})
			l.before <- func() {
				must(t, first.cmd.Process.Kill())
				<-resume
			}
			l.after <- pass
			first.post("k", `{}`)
			l.before <- pass
			if got := retry(); got.status != http.StatusOK || got.replayed() {
				t.Errorf("retry: %d %s", got.status, got.body)
			}
			l.after <- func() { close(ended) }
			close(resume)
			<-ended
		})
	})
	t.Run("it ends after the question", func(t *testing.T) {
		run(t, func(w *world, l *ledger, retry func() reply) {
			first := w.proxy("a")
			resume, ended := make(chan struct{}), make(chan struct{})
			l.before <- func() {
				must(t, first.cmd.Process.Kill())
				<-resume
			}
			first.post("k", `{}`)
			l.before <- func() { // the retry, after the question
				close(resume)
				<-ended
			}
			l.after <- func() { close(ended) } // the first
			l.after <- pass
			if got := retry(); got.status != http.StatusOK || got.replayed() {
				t.Errorf("retry: %d %s", got.status, got.body)
			}
		})
	})
}
