// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
	"github.com/idempotency-dev/operator/internal/policy"
)

// shop is an app with a table of payments on the database of its key store. Its role may do to the key store what an app may, and nothing else.
type shop struct {
	*database
	dsn   string // the app's
	store *postgres.Store
}

func newShop(t testing.TB) *shop {
	t.Helper()
	d := newDatabase(t)
	d.partitions(time.Now().Add(-24*time.Hour), 4)
	d.exec("CREATE TABLE payments (key text NOT NULL)")
	role := "App " + d.name()
	d.exec(`CREATE ROLE "` + role + `" LOGIN PASSWORD 'secret'`)
	t.Cleanup(func() { pgtest.Exec(t, pgtest.Server(t), `DROP ROLE "`+role+`"`) })
	t.Cleanup(func() { d.exec(`DROP OWNED BY "` + role + `"`) })
	d.exec(`GRANT INSERT ON payments TO "` + role + `"`)
	d.exec(`GRANT USAGE ON SCHEMA idempotency TO "` + role + `"`)
	d.exec(`GRANT EXECUTE ON FUNCTION idempotency.complete(text, integer, jsonb, bytea), idempotency.complete(text, integer, jsonb, text) TO "` + role + `"`)
	return &shop{database: d, dsn: with(t, d.dsn, func(u *url.URL) { u.User = url.UserPassword(role, "secret") }), store: d.open(t, d.sidecar())}
}

// decide reserves and wants outcome.
func (s *shop) decide(r keystore.Reservation, want keystore.Outcome) keystore.Decision {
	s.Helper()
	d, err := s.store.Reserve(context.Background(), r)
	s.must(err)
	if d.Outcome != want {
		s.Fatalf("reserve %s: outcome %d, want %d", r.Key, d.Outcome, want)
	}
	return d
}

// again is another request for the entry of r.
func again(r keystore.Reservation) keystore.Reservation {
	r.Token = keystore.NewToken()
	return r
}

// payments counts the effects of key.
func (s *shop) payments(key string, want int) {
	s.Helper()
	var n int
	s.must(s.conn.QueryRow(context.Background(), "SELECT count(*) FROM payments WHERE key = $1", key).Scan(&n))
	if n != want {
		s.Errorf("%d payments for %s, want %d", n, key, want)
	}
}

// begin starts a transaction of the app that has made its payment.
func (s *shop) begin(level pgx.TxIsoLevel, key string) pgx.Tx {
	s.Helper()
	tx, err := connect(s.TB, s.dsn).BeginTx(context.Background(), pgx.TxOptions{IsoLevel: level})
	s.must(err)
	_, err = tx.Exec(context.Background(), "INSERT INTO payments VALUES ($1)", key)
	s.must(err)
	return tx
}

func complete(tx pgx.Tx, r keystore.Reservation, body string) error {
	_, err := tx.Exec(context.Background(), "SELECT idempotency.complete($1, 201, $2, $3)",
		ownership(r).Text(keyspaceName), `{"location": "/payments/1", "Link": ["</a>", "</b>"]}`, body)
	return err
}

func recorded(body string) keystore.Answer {
	return keystore.Answer{Status: 201, Header: http.Header{"Location": {"/payments/1"}, "Link": {"</a>", "</b>"}}, Body: []byte(body)}
}

func levels() []pgx.TxIsoLevel {
	return []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}
}

// TestCompleteInTransaction: effect and answer are both there after the commit, and neither before it or after a rollback.
func TestCompleteInTransaction(t *testing.T) {
	s := newShop(t)
	for _, level := range levels() {
		t.Run(string(level), func(t *testing.T) {
			r := reservation("k " + string(level))
			s.decide(r, keystore.New)
			tx := s.begin(level, r.Key)
			s.must(complete(tx, r, "rolled back"))
			s.must(tx.Rollback(t.Context()))
			s.decide(again(r), keystore.InFlight)
			s.payments(r.Key, 0)

			tx = s.begin(level, r.Key)
			s.must(complete(tx, r, "first"))
			s.must(complete(tx, r, "repeated"))
			nested, err := tx.Begin(t.Context())
			s.must(err)
			s.must(complete(nested, r, "in a savepoint"))
			s.must(nested.Rollback(t.Context()))
			s.must(complete(tx, r, "after it"))
			s.must(tx.Commit(t.Context()))
			s.payments(r.Key, 1)

			s.must(s.store.Complete(t.Context(), ownership(r), keystore.Answer{Status: 200, Body: []byte("the proxy's")}))
			d := s.decide(again(r), keystore.Completed)
			if diff := cmp.Diff(recorded("first"), *d.Answer); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
			if err := s.store.MarkUnknown(t.Context(), ownership(r)); !errors.Is(err, keystore.ErrNotOwner) {
				t.Errorf("mark unknown what the app has recorded: %v", err)
			}
			if err := s.store.Release(t.Context(), ownership(r)); !errors.Is(err, keystore.ErrNotOwner) {
				t.Errorf("release what the app has recorded: %v", err)
			}
		})
	}
}

// TestSavepointTakesTheRecordWithIt: what a savepoint's rollback undid may be recorded again.
func TestSavepointTakesTheRecordWithIt(t *testing.T) {
	s := newShop(t)
	r := reservation("k")
	s.decide(r, keystore.New)
	tx := s.begin(pgx.ReadCommitted, r.Key)
	nested, err := tx.Begin(t.Context())
	s.must(err)
	s.must(complete(nested, r, "undone"))
	s.must(nested.Rollback(t.Context()))
	s.must(complete(tx, r, "done"))
	s.must(tx.Commit(t.Context()))
	if d := s.decide(again(r), keystore.Completed); string(d.Answer.Body) != "done" {
		t.Errorf("body %q", d.Answer.Body)
	}
}

// TestSecondTransactionIsRefused: an app that commits, does not hear of it and runs its transaction once more has its second effect rolled back.
func TestSecondTransactionIsRefused(t *testing.T) {
	s := newShop(t)
	for _, level := range levels() {
		r := reservation("k " + string(level))
		s.decide(r, keystore.New)
		tx := s.begin(level, r.Key)
		s.must(complete(tx, r, "once"))
		s.must(tx.Commit(t.Context()))
		tx = s.begin(level, r.Key)
		if err := complete(tx, r, "twice"); sqlState(err) != "IK004" {
			t.Errorf("%s: %v, want IK004", level, err)
		}
		s.rolledBack(tx)
		s.payments(r.Key, 1)
	}
}

// rolledBack: a transaction that has failed cannot commit.
func (s *shop) rolledBack(tx pgx.Tx) {
	s.Helper()
	if err := tx.Commit(context.Background()); !errors.Is(err, pgx.ErrTxCommitRollback) {
		s.Errorf("commit: %v, want a rollback", err)
	}
}

// TestFencing: whoever has lost the reservation has his effect rolled back, whatever ended it, and whether that happened before his transaction
// began or after its snapshot was taken.
func TestFencing(t *testing.T) {
	s := newShop(t)
	ends := map[string]func(t *testing.T, r keystore.Reservation){
		"taken over": func(t *testing.T, r keystore.Reservation) {
			s.must(s.store.MarkUnknown(t.Context(), ownership(r)))
			other := again(r)
			other.TakeOver = true
			s.decide(other, keystore.TakenOver)
		},
		"taken over and completed": func(t *testing.T, r keystore.Reservation) {
			s.must(s.store.MarkUnknown(t.Context(), ownership(r)))
			other := again(r)
			other.TakeOver = true
			s.decide(other, keystore.TakenOver)
			tx := s.begin(pgx.ReadCommitted, r.Key)
			s.must(complete(tx, other, "other"))
			s.must(tx.Commit(t.Context()))
		},
		"released": func(t *testing.T, r keystore.Reservation) { s.must(s.store.Release(t.Context(), ownership(r))) },
		"released and reserved by another": func(t *testing.T, r keystore.Reservation) {
			s.must(s.store.Release(t.Context(), ownership(r)))
			s.decide(again(r), keystore.New)
		},
		"settled as absent": func(t *testing.T, r keystore.Reservation) {
			s.must(s.store.MarkUnknown(t.Context(), ownership(r)))
			s.must(s.admin.Settle(t.Context(), keyspaceName, ownership(r), nil))
		},
		"settled with an answer": func(t *testing.T, r keystore.Reservation) {
			s.must(s.store.MarkUnknown(t.Context(), ownership(r)))
			s.must(s.admin.Settle(t.Context(), keyspaceName, ownership(r), &keystore.Answer{Status: 201}))
		},
	}
	for name, end := range ends {
		want := 0
		if name == "taken over and completed" {
			want = 1
		}
		for _, level := range levels() {
			t.Run(name+"/"+string(level), func(t *testing.T) {
				r := reservation(name + " " + string(level))
				s.decide(r, keystore.New)
				stale := s.begin(level, r.Key)
				end(t, r)
				late := s.begin(level, r.Key)
				if err := complete(late, r, "late"); sqlState(err) != "IK003" {
					t.Errorf("begun afterwards: %v, want IK003", err)
				}
				s.rolledBack(late)
				err := complete(stale, r, "stale")
				if code := sqlState(err); code != "IK003" && (level == pgx.ReadCommitted || code != "40001") {
					t.Errorf("begun before: %v, want IK003, or 40001 at %s", err, level)
				}
				s.rolledBack(stale)
				s.payments(r.Key, want)
			})
		}
	}
}

// TestCompleteFromUnknown: the owner may learn the answer after its outcome was given up, while nobody has taken over.
func TestCompleteFromUnknown(t *testing.T) {
	s := newShop(t)
	for _, level := range levels() {
		r := reservation("k " + string(level))
		s.decide(r, keystore.New)
		s.must(s.store.MarkUnknown(t.Context(), ownership(r)))
		tx := s.begin(level, r.Key)
		s.must(complete(tx, r, "late"))
		s.must(tx.Commit(t.Context()))
		s.decide(again(r), keystore.Completed)
	}
}

// TestExpiredReservation: what is not honoured any more cannot be completed.
func TestExpiredReservation(t *testing.T) {
	s := newShop(t)
	start := time.Now()
	s.setClock(start)
	r := reservation("k")
	s.decide(r, keystore.New)
	s.must(s.store.Retire(t.Context(), r.Holder))
	s.setClock(start.Add(r.Window))
	tx := s.begin(pgx.ReadCommitted, r.Key)
	if err := complete(tx, r, "late"); sqlState(err) != "IK003" {
		t.Errorf("%v, want IK003", err)
	}
	s.rolledBack(tx)
}

// TestSnapshotOlderThanTheRequest: a transaction that cannot see its own reservation is refused.
func TestSnapshotOlderThanTheRequest(t *testing.T) {
	s := newShop(t)
	tx := s.begin(pgx.RepeatableRead, "k")
	r := reservation("k")
	s.decide(r, keystore.New)
	if err := complete(tx, r, "early"); sqlState(err) != "IK003" {
		t.Errorf("%v, want IK003", err)
	}
	s.rolledBack(tx)
	s.payments("k", 0)
}

// TestOpenTransaction: whatever comes while the app's transaction is open is told that the entry is in flight, and takes nothing over.
func TestOpenTransaction(t *testing.T) {
	for _, commit := range []bool{true, false} {
		s := newShop(t)
		r := reservation("k")
		s.decide(r, keystore.New)
		s.must(s.store.Retire(t.Context(), r.Holder)) // its proxy is gone: without the transaction the outcome would be unknown
		tx := s.begin(pgx.ReadCommitted, r.Key)
		s.must(complete(tx, r, "answer"))

		takeOver := again(r)
		takeOver.TakeOver = true
		if d := s.decide(takeOver, keystore.InFlight); d.LeaseRemaining != 0 {
			t.Errorf("lease remaining %s, which nobody can know", d.LeaseRemaining)
		}
		s.decide(again(r), keystore.InFlight)
		other := again(r)
		other.Fingerprint = keystore.Fingerprint{9}
		s.decide(other, keystore.Mismatch)
		unrelated := reservation("another key")
		unrelated.Holder = keystore.NewHolder()
		s.decide(unrelated, keystore.New)
		s.waitInVain(r)
		if commit {
			s.must(tx.Commit(t.Context()))
			s.decide(takeOver, keystore.Completed)
			if err := s.admin.Settle(t.Context(), keyspaceName, ownership(r), nil); !errors.Is(err, postgres.ErrNotUnknown) {
				t.Errorf("settle what is completed: %v", err)
			}
			s.payments(r.Key, 1)
			continue
		}
		s.must(tx.Rollback(t.Context()))
		s.decide(takeOver, keystore.TakenOver)
		s.payments(r.Key, 0)
	}
}

// waitInVain makes every call that would change the entry of r: none does.
func (s *shop) waitInVain(r keystore.Reservation) {
	var group sync.WaitGroup
	for call, run := range map[string]func() error{
		"complete": func() error {
			return s.store.Complete(context.Background(), ownership(r), keystore.Answer{Status: 200})
		},
		"mark unknown": func() error { return s.store.MarkUnknown(context.Background(), ownership(r)) },
		"release":      func() error { return s.store.Release(context.Background(), ownership(r)) },
		"settle":       func() error { return s.admin.Settle(context.Background(), keyspaceName, ownership(r), nil) },
	} {
		group.Go(func() {
			if err := run(); err == nil || errors.Is(err, keystore.ErrNotOwner) || errors.Is(err, postgres.ErrNotUnknown) {
				s.Errorf("%s while the transaction is open: %v", call, err)
			}
		})
	}
	group.Wait()
}

// TestAppMayOnlyComplete logs in as the app and tries what belongs to the sidecar and to the operator.
func TestAppMayOnlyComplete(t *testing.T) {
	s := newShop(t)
	relation := postgres.Relation(keyspaceName)
	conn := connect(t, s.dsn)
	for _, sql := range []string{
		"SELECT * FROM idempotency." + relation,
		"SELECT * FROM idempotency.keyspaces",
		"SELECT idempotency." + relation + "_complete('c', 'k', gen_random_uuid(), NULL, 200, NULL, NULL, false)",
		"SELECT idempotency." + relation + "_record('c', 'k', gen_random_uuid(), 200, NULL, NULL)",
		"SELECT idempotency." + relation + "_check()",
		"SELECT idempotency.retire(gen_random_uuid())",
		"SELECT idempotency.lock_entry(1)",
		"SELECT idempotency.header_of('{}')",
	} {
		if _, err := conn.Exec(t.Context(), sql); sqlState(err) != "42501" {
			t.Errorf("%s: %v, want insufficient_privilege", sql, err)
		}
	}
}

// TestEveryValueReachesTheReplay: bodies of text and of bytes, headers in any case, and none of either.
func TestEveryValueReachesTheReplay(t *testing.T) {
	s := newShop(t)
	for _, row := range []struct {
		args   string
		want   keystore.Answer
		reason string
	}{
		{`'{"Location": "/1"}', 'grün'`, keystore.Answer{Header: http.Header{"Location": {"/1"}}, Body: []byte("grün")}, "a literal body is UTF-8 text"},
		{`'{"x-a_b": ["1", ""]}', '\x00ff'::bytea`, keystore.Answer{Header: http.Header{"X-A_b": {"1", ""}}, Body: []byte{0, 255}}, "bytes"},
		{`NULL, NULL::bytea`, keystore.Answer{}, "nothing"},
		{`'{}', '\x'::text`, keystore.Answer{Body: []byte(`\x`)}, "text that looks like bytes"},
	} {
		r := reservation(row.reason)
		s.decide(r, keystore.New)
		_, err := connect(t, s.dsn).Exec(t.Context(), "SELECT idempotency.complete('"+ownership(r).Text(keyspaceName)+"', 299, "+row.args+")")
		s.must(err)
		row.want.Status = 299
		if diff := cmp.Diff(row.want, *s.decide(again(r), keystore.Completed).Answer); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
}

// TestCompleteRefuses: what cannot be a reservation or an answer, with what is wrong and how to mend it.
func TestCompleteRefuses(t *testing.T) {
	s := newShop(t)
	r := reservation("k")
	s.decide(r, keystore.New)
	text := ownership(r).Text(keyspaceName)
	foreign := ownership(r).Text("another keyspace")
	guessed := ownership(again(r)).Text(keyspaceName)
	for _, row := range []struct{ reservation, args, code, reason string }{
		{"", `200, '{}', ''`, "22023", "no reservation"},
		{r.Token.String(), `200, '{}', ''`, "22023", "only a token"},
		{text + "\n", `200, '{}', ''`, "22023", "something behind it"},
		{text + ".YQ==", `200, '{}', ''`, "22023", "a part too many"},
		{foreign, `200, '{}', ''`, "IK003", "a keyspace that is not here"},
		{guessed, `200, '{}', ''`, "IK003", "somebody who knows client and key"},
		{text, `199, '{}', ''`, "22023", "an interim status"},
		{text, `600, '{}', ''`, "22023", "no status"},
		{text, `NULL, '{}', ''`, "22023", "no status at all"},
		{text, `200, '[]', ''`, "22023", "headers that are a list"},
		{text, `200, '"x"', ''`, "22023", "headers that are text"},
		{text, `200, '{"A B": "x"}', ''`, "22023", "a name with a space"},
		{text, `200, '{"": "x"}', ''`, "22023", "no name"},
		{text, `200, '{"A": 1}', ''`, "22023", "a number"},
		{text, `200, '{"A": null}', ''`, "22023", "null"},
		{text, `200, '{"A": [["x"]]}', ''`, "22023", "a list in a list"},
		{text, `200, '{"A": "a\r\nB: c"}', ''`, "22023", "a line end"},
		{text, `200, '{"A": "ü"}', ''`, "22023", "more than ASCII"},
		{text, `200, '{"a": "1", "A": "2"}', ''`, "22023", "one name twice"},
		{text, `200, '{"set-cookie": "a=b"}', ''`, "22023", "somebody's session"},
		{text, `200, '{}', repeat('x', 67108865)`, "22023", "one byte too many"},
	} {
		_, err := connect(t, s.dsn).Exec(t.Context(), "SELECT idempotency.complete($$"+row.reservation+"$$, "+row.args+")")
		if sqlState(err) != row.code {
			t.Errorf("%s: %v, want %s", row.reason, err, row.code)
		}
	}
	s.decide(again(r), keystore.InFlight)
}

// TestWhatAReplayMustNotHave: the app is refused exactly what policies are.
func TestWhatAReplayMustNotHave(t *testing.T) {
	d := newDatabase(t)
	for _, name := range []string{
		"Set-Cookie", "Set-Cookie2", "Content-Length", "Date", "Age", "Idempotent-Replayed", "Connection", "Keep-Alive", "Proxy-Authenticate", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade", "Proxy-Connection", "Proxy-Authorization", "Access-Control-Allow-Origin", "Ratelimit-Limit", "X-Ratelimit-Reset",
		"Content-Type", "Location", "Etag", "Retry-After", "Dated", "X-Set-Cookie",
	} {
		_, err := d.conn.Exec(t.Context(), "SELECT idempotency.header_of(jsonb_build_object($1::text, 'x'))", name)
		if unfit := policy.UnfitForReplay(name) != ""; unfit != (sqlState(err) == "22023") {
			t.Errorf("%s: %v, while a policy refuses it: %t", name, err, unfit)
		}
	}
}
