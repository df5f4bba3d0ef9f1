// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/keystoretest"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
)

// crowd sends calls at once through a store whose lanes are never free for one of them, and returns their errors.
func crowd(t testing.TB, s *postgres.Store, calls ...func(context.Context) error) []error {
	t.Helper()
	defer s.Gather(len(calls))()
	errs := make([]error, len(calls))
	var group sync.WaitGroup
	for n, call := range calls {
		group.Go(func() { errs[n] = call(context.WithoutCancel(t.Context())) })
	}
	group.Wait()
	return errs
}

func (d *database) ready(t testing.TB) *postgres.Store {
	d.partitions(keystoretest.Start(), 2)
	d.setClock(keystoretest.Start())
	s := d.open(t, d.sidecar())
	d.must(s.KeepAlive(t.Context(), keystore.Holder{1}, time.Hour))
	if got, err := s.Reserve(t.Context(), reservation("first of the day")); err != nil || got.Outcome != keystore.New {
		t.Fatalf("reserve: %d, %v", got.Outcome, err)
	}
	return s
}

// TestBatchIsOneTransaction: what is sent together is one round trip and one commit, and is settled there.
func TestBatchIsOneTransaction(t *testing.T) {
	d := newDatabase(t)
	s := d.ready(t)
	known := reservation("known")
	if _, err := s.Reserve(t.Context(), known); err != nil {
		t.Fatal(err)
	}
	const n = 10
	var calls []func(context.Context) error
	for i := range n {
		calls = append(calls, func(ctx context.Context) error {
			got, err := s.Reserve(ctx, reservation(fmt.Sprint("new ", i)))
			if got.Outcome != keystore.New {
				t.Errorf("call %d: outcome %d", i, got.Outcome)
			}
			return err
		})
	}
	calls = append(calls, func(ctx context.Context) error {
		return s.Complete(ctx, ownership(known), keystore.Answer{Status: 201})
	})
	d.must(errors.Join(crowd(t, s, calls...)...))
	var transactions int
	d.must(d.conn.QueryRow(t.Context(), "SELECT count(DISTINCT xmin::text) FROM idempotency."+postgres.Relation(keyspaceName)+
		" WHERE key LIKE 'new %' OR key = 'known'").Scan(&transactions))
	if transactions != 1 {
		t.Errorf("%d transactions wrote the batch, want 1", transactions)
	}
}

// TestBadCallSpoilsNoOther: a call that the server refuses fails by itself.
func TestBadCallSpoilsNoOther(t *testing.T) {
	d := newDatabase(t)
	s := d.ready(t)
	errs := crowd(t, s,
		func(ctx context.Context) error { _, err := s.Reserve(ctx, reservation("good")); return err },
		func(ctx context.Context) error { _, err := s.Reserve(ctx, reservation("bad \x00")); return err },
		func(ctx context.Context) error { _, err := s.Reserve(ctx, reservation("better")); return err },
	)
	if errs[0] != nil || errs[2] != nil {
		t.Errorf("the good ones: %v, %v", errs[0], errs[2])
	}
	if !errors.Is(errs[1], keystore.ErrUnavailable) {
		t.Errorf("the bad one: %v, want ErrUnavailable", errs[1])
	}
}

// TestOneKeyTwiceInABatch: one caller owns it.
func TestOneKeyTwiceInABatch(t *testing.T) {
	for _, others := range []int{0, 10} { // one by one, and by the function for many
		d := newDatabase(t)
		s := d.ready(t)
		var mu sync.Mutex
		count := map[keystore.Outcome]int{}
		var calls []func(context.Context) error
		for range 2 + others {
			calls = append(calls, func(ctx context.Context) error {
				got, err := s.Reserve(ctx, reservation("key"))
				mu.Lock()
				defer mu.Unlock()
				count[got.Outcome]++
				return err
			})
		}
		d.must(errors.Join(crowd(t, s, calls...)...))
		if count[keystore.New] != 1 || count[keystore.InFlight] != len(calls)-1 {
			t.Errorf("outcomes of %d calls: %v, want one New and the others InFlight", len(calls), count)
		}
	}
}

// TestLockedEntryHoldsUpNoOther: an app's transaction that keeps an entry's lock makes no other entry wait, in a lane or in a batch.
func TestLockedEntryHoldsUpNoOther(t *testing.T) {
	d := newDatabase(t)
	s := d.ready(t)
	locked := reservation("locked")
	if _, err := s.Reserve(t.Context(), locked); err != nil {
		t.Fatal(err)
	}
	tx, err := connect(t, d.dsn).Begin(t.Context())
	d.must(err)
	if _, err := tx.Exec(t.Context(), "SELECT idempotency.complete($1, 201, '{}', 'body'::text)",
		ownership(locked).Text(keyspaceName)); err != nil {
		t.Fatal(err)
	}
	// The owner's own completion has to wait for the app's transaction, whatever the others do.
	completed := make(chan error, 1)
	go func() {
		err := keystore.ErrUnavailable
		for errors.Is(err, keystore.ErrUnavailable) { // it gives up after a while
			err = s.Complete(context.WithoutCancel(t.Context()), ownership(locked), keystore.Answer{Status: 200})
		}
		completed <- err
	}()
	var calls []func(context.Context) error
	for i := range 10 {
		calls = append(calls, func(ctx context.Context) error {
			got, err := s.Reserve(ctx, reservation(fmt.Sprint("free ", i)))
			if got.Outcome != keystore.New {
				t.Errorf("call %d: outcome %d", i, got.Outcome)
			}
			return err
		})
	}
	calls = append(calls, func(ctx context.Context) error {
		got, err := s.Reserve(ctx, reservation("locked"))
		if got.Outcome != keystore.InFlight {
			t.Errorf("the locked entry: outcome %d, want InFlight", got.Outcome)
		}
		return err
	})
	d.must(errors.Join(crowd(t, s, calls...)...))
	select {
	case err := <-completed:
		t.Errorf("the owner's completion did not wait: %v", err)
	default:
	}
	again := reservation("locked")
	again.Repeated = true
	if got, err := s.Reserve(t.Context(), again); !errors.Is(err, keystore.ErrUnavailable) {
		t.Errorf("a repeated call, whose first attempt may be what has the lock: outcome %d, %v, want ErrUnavailable", got.Outcome, err)
	}
	d.must(tx.Commit(t.Context()))
	d.must(<-completed)
	got, err := s.Reserve(t.Context(), reservation("locked"))
	if d.must(err); got.Outcome != keystore.Completed || string(got.Answer.Body) != "body" {
		t.Errorf("in the end: %+v, want the app's answer", got)
	}
}

// TestCallOfWhoLeftIsNotSent: a caller that gives up, and releases what may have been reserved for it, leaves nothing behind: neither while it waits for a
// lane, nor in a batch that is about to be sent.
func TestCallOfWhoLeftIsNotSent(t *testing.T) {
	d := newDatabase(t)
	s := d.ready(t)
	stop := s.Gather(6)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	left := reservation("left")
	for range 3 {
		if _, err := s.Reserve(ctx, left); !errors.Is(err, keystore.ErrUnavailable) {
			t.Fatalf("a call without time: %v, want ErrUnavailable", err)
		}
	}
	errs := make([]error, 6)
	var group sync.WaitGroup
	for n := range errs {
		group.Go(func() {
			if n == 0 {
				errs[n] = s.Release(context.WithoutCancel(t.Context()), ownership(left))
			} else {
				_, errs[n] = s.Reserve(context.WithoutCancel(t.Context()), reservation(fmt.Sprint("stays ", n)))
			}
		})
	}
	group.Wait()
	stop()
	if !errors.Is(errs[0], keystore.ErrNotOwner) {
		t.Errorf("release: %v, want ErrNotOwner", errs[0])
	}
	d.must(errors.Join(errs[1:]...))
	s.SendForNobody(left, reservation("also left"))
	for _, key := range []string{"left", "also left"} {
		if got, err := s.Reserve(t.Context(), reservation(key)); err != nil || got.Outcome != keystore.New {
			t.Errorf("%q: outcome %d, %v, want New", key, got.Outcome, err)
		}
	}
}

// TestEndsOfLockedEntriesHoldUpNoOther: an app that keeps transactions open, in which it has completed entries, holds up one connection at most, however many
// attempts end meanwhile: the others, and the holder's life, have theirs.
func TestEndsOfLockedEntriesHoldUpNoOther(t *testing.T) {
	d := newDatabase(t)
	s := d.ready(t)
	const n = 4
	var group sync.WaitGroup
	done := make(chan struct{})
	for i := range n {
		locked := reservation(fmt.Sprint("locked ", i))
		if _, err := s.Reserve(t.Context(), locked); err != nil {
			t.Fatal(err)
		}
		tx, err := connect(t, d.dsn).Begin(t.Context())
		d.must(err)
		if _, err := tx.Exec(t.Context(), "SELECT idempotency.complete($1, 201, '{}', 'body'::text)", ownership(locked).Text(keyspaceName)); err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			end := s.MarkUnknown
			if i%2 == 1 {
				end = s.Release
			}
			if err := end(context.WithoutCancel(t.Context()), ownership(locked)); !errors.Is(err, keystore.ErrUnavailable) {
				t.Errorf("end of locked entry %d: %v, want ErrUnavailable", i, err)
			}
		})
	}
	go func() { group.Wait(); close(done) }()
	most := 0
	await(t, "the calls end", func() bool {
		var waiting int
		d.must(d.conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").Scan(&waiting))
		most = max(most, waiting)
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
	if most != 1 {
		t.Errorf("%d connections waited for transactions of the app at once, want 1", most)
	}
}

// TestCommitOfBatchFails: nobody is told what the server said before the commit, and the commit's failure is that of one call only.
func TestCommitOfBatchFails(t *testing.T) {
	for _, n := range []int{2, 10} {
		d := newDatabase(t)
		s := d.ready(t)
		relation := "idempotency." + postgres.Relation(keyspaceName)
		d.exec(`CREATE FUNCTION idempotency.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$`)
		d.exec(`CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON ` + relation + ` DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
			WHEN (NEW.key = 'bad') EXECUTE FUNCTION idempotency.refuse()`)
		var calls []func(context.Context) error
		for i := range n {
			calls = append(calls, func(ctx context.Context) error {
				key := fmt.Sprint("good ", i)
				if i == n-1 {
					key = "bad"
				}
				_, err := s.Reserve(ctx, reservation(key))
				return err
			})
		}
		errs := crowd(t, s, calls...)
		d.must(errors.Join(errs[:n-1]...))
		if !errors.Is(errs[n-1], keystore.ErrUnavailable) {
			t.Errorf("the bad one of %d: %v, want ErrUnavailable", n, errs[n-1])
		}
		var rows int
		d.must(d.conn.QueryRow(t.Context(), "SELECT count(*) FROM "+relation+" WHERE key LIKE 'good %'").Scan(&rows))
		if rows != n-1 {
			t.Errorf("%d entries, want those of %d good calls", rows, n-1)
		}
	}
}
