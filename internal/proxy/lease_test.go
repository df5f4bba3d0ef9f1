// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// other takes the entry over from a process that it takes for dead, and then does what it does.
func (r *rig) other(then func(o keystore.Ownership)) {
	r.t.Helper()
	ctx := context.Background()
	must(r.t, r.store.Retire(ctx, r.proxy.holder))
	reservation := r.store.get("alice", "k").Reservation
	reservation.Token, reservation.Holder, reservation.Lease, reservation.TakeOver = keystore.NewToken(), keystore.NewHolder(), time.Hour, true
	d, err := r.store.Reserve(ctx, reservation)
	must(r.t, err)
	if d.Outcome != keystore.TakenOver {
		r.t.Errorf("the other got outcome %d", d.Outcome)
	}
	then(keystore.Ownership{Client: "alice", Key: "k", Token: reservation.Token})
}

// TestProcessStoppedForLongerThanItsLease: what was reserved before may be another's now, which only the store knows.
func TestProcessStoppedForLongerThanItsLease(t *testing.T) {
	ctx := context.Background()
	for _, row := range []struct {
		name, policy string
		meanwhile    func(r *rig)
		status       int
		problem      string
		replayed     bool
		executions   int64
	}{
		{"nobody asked for it", "Block", func(*rig) {}, 201, "", false, 1},
		{"the holder is dead, and nobody asked for it", "Block", func(r *rig) { must(t, r.store.Retire(ctx, r.proxy.holder)) }, 201, "", false, 1},
		{"another executes it", "Block", func(r *rig) { r.other(func(keystore.Ownership) {}) }, 409, "in-flight", false, 0},
		{"another executes it", "Reexecute", func(r *rig) { r.other(func(keystore.Ownership) {}) }, 409, "in-flight", false, 0},
		{"another has executed it", "Block", func(r *rig) {
			r.other(func(o keystore.Ownership) { must(t, r.store.Complete(ctx, o, keystore.Answer{Status: 202})) })
		}, 202, "", true, 0},
		{"another does not know", "Block", func(r *rig) {
			r.other(func(o keystore.Ownership) { must(t, r.store.MarkUnknown(ctx, o)) })
		}, 409, "outcome-unknown", false, 0},
		{"another does not know", "Reexecute", func(r *rig) {
			r.other(func(o keystore.Ownership) { must(t, r.store.MarkUnknown(ctx, o)) })
		}, 201, "", false, 1},
		{"another does not know, and the app does", "Reconcile", func(r *rig) {
			r.other(func(o keystore.Ownership) { must(t, r.store.MarkUnknown(ctx, o)) })
		}, 200, "", true, 0},
		{"the store is away", "Block", func(r *rig) { r.store.failing(keystore.ErrUnavailable, "Reserve") }, 503, "store-unavailable", false, 0},
	} {
		t.Run(row.name+" "+row.policy, func(t *testing.T) {
			clock := &stepClock{}
			var r *rig
			r = start(t, func(s *setup) {
				s.now = clock.now
				s.config.Routes[0].OnUnknownOutcome, s.config.Routes[0].ReconcilePath = row.policy, "/reconcile"
				s.app = func(w http.ResponseWriter, req *http.Request) {
					if req.URL.Path == "/reconcile" {
						r.n.Add(-1)
						return
					}
					w.WriteHeader(http.StatusCreated)
				}
			})
			r.store.hook("Reserve", func() {
				clock.step(time.Hour)
				r.store.hook("Reserve", func() {
					r.store.hook("Reserve", nil)
					row.meanwhile(r)
				})
			})
			want(t, r.post("k", `{}`), row.status, row.problem, row.replayed)
			r.executions(row.executions)
			if row.problem == "store-unavailable" {
				r.store.failing(nil, "Reserve")
				eventually(t, "the reservation is given back", func() bool { return r.store.get("alice", "k") == nil })
			}
		})
	}
}

// TestProcessIsNeverSure: an answer that takes longer than the store vouches for is none.
func TestProcessIsNeverSure(t *testing.T) {
	for _, onUnavailable := range []string{"Reject", "PassThrough"} {
		clock := &stepClock{}
		r := start(t, func(s *setup) { s.now, s.config.Store.OnUnavailable = clock.now, onUnavailable })
		r.store.hook("Reserve", func() { clock.step(r.proxy.limits.Lease / 2) })
		want(t, r.post("k", `{}`), 503, "store-unavailable", false)
		r.executions(0)
		eventually(t, "the reservation is given back", func() bool { return r.store.get("alice", "k") == nil })
	}
}

// TestLeaseLapsesAndIsRenewed: a process that is alive again has not been alive all the time. Two processes share a store; the lease of the first
// lapses while the app thinks about what it is asked, and is renewed before the app answers.
func TestLeaseLapsesAndIsRenewed(t *testing.T) {
	store := newMemStore()
	var effects, inquiries atomic.Int64
	asked, answer := make(chan struct{}), make(chan struct{})
	app := (&rig{t: t}).startApp(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/reconcile" {
			if inquiries.Add(1) == 1 {
				close(asked)
				<-answer
			}
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if effects.Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusCreated)
	})
	two := func(s *setup) {
		s.store, s.url = store, app
		s.limits.Lease, s.limits.StoreTimeout = 600*time.Millisecond, 500*time.Millisecond
		s.config.Routes[0].OnUnknownOutcome, s.config.Routes[0].ReconcilePath = "Reconcile", "/reconcile"
	}
	a, b := start(t, two), start(t, two)
	alive := func() bool {
		store.mu.Lock()
		defer store.mu.Unlock()
		return time.Now().Before(store.holders[a.proxy.holder])
	}
	want(t, a.post("k", `{}`), 502, "upstream-failed", false)
	replies := make(chan reply, 1)
	go func() { replies <- a.post("k", `{}`) }()
	<-asked
	store.failing(keystore.ErrUnavailable, "KeepAlive")
	eventually(t, "the lease lapses", func() bool { return !alive() })
	want(t, b.post("k", `{}`), 201, "", false)
	store.failing(nil, "KeepAlive")
	eventually(t, "the lease is renewed", alive)
	close(answer)
	want(t, <-replies, 201, "", true)
	if n := effects.Load(); n != 2 {
		t.Errorf("after the unknown attempt the app executed %d times, want 1", n-1)
	}
}

// TestReplyToATakeOverIsLost: the key is given back, and the earlier attempt may have taken effect all the same.
func TestReplyToATakeOverIsLost(t *testing.T) {
	var asked, effects atomic.Int64
	lossy := &lossyStore{memStore: newMemStore()}
	r := start(t, func(s *setup) {
		s.store = lossy
		s.config.Routes[0].OnUnknownOutcome, s.config.Routes[0].ReconcilePath = "Reconcile", "/reconcile"
		s.app = func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Path == "/reconcile" {
				asked.Add(1)
				return
			}
			effects.Add(1)
			panic(http.ErrAbortHandler)
		}
	})
	want(t, r.post("k", `{}`), 502, "upstream-failed", false)
	lossy.lose.Store(true)
	want(t, r.post("k", `{}`), 503, "store-unavailable", false)
	lossy.lose.Store(false)
	eventually(t, "the key is given back", func() bool { return lossy.count("Release") == 1 && !r.proxy.current.Load().link.down.Load() })
	want(t, r.post("k", `{}`), 200, "", true)
	if asked.Load() != 1 || effects.Load() != 1 {
		t.Errorf("the app was asked %d times and executed %d times, want 1 and 1", asked.Load(), effects.Load())
	}
}

// TestDoubtfulReservationOfAnUnprotectedRequest: it was executed, so that the key is not free.
func TestDoubtfulReservationOfAnUnprotectedRequest(t *testing.T) {
	for _, mode := range []string{"Enforce", "Audit"} {
		lossy := &lossyStore{memStore: newMemStore()}
		r := start(t, func(s *setup) { s.store, s.config.Mode, s.config.Store.OnUnavailable = lossy, mode, "PassThrough" })
		lossy.lose.Store(true)
		got := r.post("k", `{}`)
		want(t, got, 201, "", false)
		if marked := got.Header.Get(headerStatus) == "unprotected"; marked != (mode == "Enforce") {
			t.Errorf("%s: marked as unprotected: %v", mode, marked)
		}
		lossy.lose.Store(false)
		eventually(t, "the outcome is unknown", func() bool { return lossy.get("alice", "k").unknown })
		eventually(t, "the store is used again", func() bool { return !r.proxy.current.Load().link.down.Load() })
		r.proxy.Load(sampleConfig(), nil, "")
		want(t, r.post("k", `{}`), 409, "outcome-unknown", false)
		r.executions(1)
	}
}

// TestBusyStoreIsNotDown: a call that waited too long for its turn, or that fails alone, says nothing of a store that answers others.
func TestBusyStoreIsNotDown(t *testing.T) {
	for _, row := range []struct {
		name                  string
		timeout, other, check bool // there is no time left, another call was answered, the store answers when it is asked
		down                  bool
	}{
		{"no time left, and another was answered", true, true, false, false},
		{"no time left, and nobody was answered", true, false, false, true},
		{"no time left, nobody was answered, and the store says that it is there", true, false, true, false},
		{"refused at once", false, true, false, true},
		{"refused at once, and the store says that it is there", false, true, true, false},
	} {
		l := start(t).proxy.current.Load().link
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		if !row.check {
			l.store.(*memStore).failing(keystore.ErrUnavailable, "Check")
		}
		err := l.call(ctx, "reserve", func(context.Context) error {
			if row.other {
				must(t, l.call(context.Background(), "reserve", func(context.Context) error { return nil }))
			}
			if row.timeout {
				cancel()
			}
			return keystore.ErrUnavailable
		})
		if !errors.Is(err, keystore.ErrUnavailable) || errors.Is(err, errStoreBusy) == row.down || l.down.Load() != row.down {
			t.Errorf("%s: down %v, error %v", row.name, l.down.Load(), err)
		}
	}
}

// TestPassThroughNeedsAnOutage: a store that fails one call and answers to Check may know the key of that call.
func TestPassThroughNeedsAnOutage(t *testing.T) {
	r := start(t, func(s *setup) { s.config.Store.OnUnavailable = "PassThrough" })
	r.store.failing(keystore.ErrUnavailable, "Reserve")
	want(t, r.post("k", `{}`), 503, "store-unavailable", false)
	r.executions(0)
	r.store.failing(keystore.ErrUnavailable, "Check")
	want(t, r.post("k", `{}`), 201, "", false)
	r.executions(1)
}
