// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// closing is a raw app that ends the connection once it has read the request.
func closing(int64, net.Conn, *http.Request) bool { return false }

// gate is an app that tells when it is inside and leaves when it is let go.
type gate struct{ inside, leave chan struct{} }

func newGate() *gate { return &gate{make(chan struct{}, 100), make(chan struct{})} }

func (g *gate) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	g.inside <- struct{}{}
	<-g.leave
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write([]byte("done"))
}

func TestManyAtOnce(t *testing.T) {
	for _, mode := range []string{"Reject", "Wait"} {
		g := newGate()
		r := start(t, func(s *setup) {
			s.config.Routes[0].InFlight, s.config.Routes[0].MaxWaitMillis = mode, 10_000
			s.app = g.ServeHTTP
		})
		const n = 50
		replies := make(chan reply, n)
		for range n {
			go func() { replies <- r.post("k", `{}`) }()
		}
		<-g.inside
		originals, refused, replayed := 0, 0, 0
		eventually(t, "everyone has asked", func() bool { return r.store.count("Reserve") >= n })
		close(g.leave)
		for range n {
			switch got := <-replies; {
			case got.replayed():
				replayed++
			case got.Status == 201:
				originals++
			case got.problem() == "in-flight":
				refused++
			}
		}
		if originals != 1 || mode == "Reject" && refused+replayed != n-1 || mode == "Wait" && replayed != n-1 {
			t.Errorf("%s: %d originals, %d refused, %d replayed", mode, originals, refused, replayed)
		}
		r.executions(1)
	}
}

func TestWaitEnds(t *testing.T) {
	g := newGate()
	r := start(t, func(s *setup) {
		s.config.Routes[0].InFlight, s.config.Routes[0].MaxWaitMillis = "Wait", 50
		s.app = g.ServeHTTP
		s.limits.Waiters = 1
	})
	var wg sync.WaitGroup
	wg.Go(func() { r.post("k", `{}`) })
	<-g.inside
	want(t, r.post("k", `{}`), 409, "in-flight", false)
	close(g.leave)
	wg.Wait()
	r.executions(1)
}

// TestWaiters: one more than may wait is refused at once.
func TestWaiters(t *testing.T) {
	g := newGate()
	r := start(t, func(s *setup) {
		s.config.Routes[0].InFlight, s.config.Routes[0].MaxWaitMillis = "Wait", 60_000
		s.limits.Waiters, s.app = 2, g.ServeHTTP
	})
	replies := make(chan reply, 3)
	go func() { replies <- r.post("k", `{}`) }()
	<-g.inside
	for range 2 {
		go func() { replies <- r.post("k", `{}`) }()
	}
	eventually(t, "two wait", func() bool { return r.proxy.waiters.used.Load() == 2 })
	want(t, r.post("k", `{}`), 409, "in-flight", false)
	close(g.leave)
	for range 3 {
		if got := <-replies; got.Status != 201 {
			t.Errorf("got %d", got.Status)
		}
	}
	r.executions(1)
}

func TestLiveHolderKeepsItsReservation(t *testing.T) {
	g := newGate()
	r := start(t, func(s *setup) {
		s.limits.Lease, s.limits.StoreTimeout = 1500*time.Millisecond, 500*time.Millisecond
		s.config.Routes[0].OnUnknownOutcome = "Reexecute" // would take over at once
		s.app = g.ServeHTTP
	})
	var wg sync.WaitGroup
	wg.Go(func() { want(t, r.post("k", `{}`), 201, "", false) })
	<-g.inside
	renewals := r.store.count("KeepAlive")
	eventually(t, "the lease was renewed for longer than it lasts", func() bool { return r.store.count("KeepAlive") > renewals+4 })
	want(t, r.post("k", `{}`), 409, "in-flight", false)
	close(g.leave)
	wg.Wait()
	r.executions(1)
}

// TestDeadHolder: the retry after the lease gets what the route says.
func TestDeadHolder(t *testing.T) {
	for _, row := range []struct {
		policy     string
		status     int
		problem    string
		executions int64
	}{{"Block", 409, "outcome-unknown", 0}, {"Reexecute", 201, "", 1}} {
		r := start(t, func(s *setup) { s.config.Routes[0].OnUnknownOutcome = row.policy })
		dead := r.orphan("k", `{}`)
		want(t, r.post("k", `{}`), row.status, row.problem, false)
		r.executions(row.executions)
		err := r.store.Complete(context.Background(), dead, keystore.Answer{Status: 500})
		if row.policy == "Reexecute" {
			if err == nil {
				t.Error("the dead holder changed the entry after it was taken over")
			}
			want(t, r.post("k", `{}`), 201, "", true)
		}
	}
}

// orphan reserves like another process that then died.
func (r *rig) orphan(key, body string) keystore.Ownership {
	r.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, r.url+"/payments", strings.NewReader(body))
	must(r.t, err)
	req.Header.Set("Content-Type", "application/json")
	taken, err := r.proxy.spool.take(req)
	must(r.t, err)
	defer taken.close()
	g := r.proxy.enter()
	defer g.leave()
	reservation := keystore.Reservation{
		Client: "alice", Key: key, Fingerprint: newRoute(g.config.Routes[0]).fingerprint(req, taken), Token: keystore.NewToken(),
		Holder: keystore.NewHolder(), Lease: time.Hour, Window: time.Hour, Route: "create-payment",
	}
	_, err = r.store.Reserve(context.Background(), reservation)
	must(r.t, err)
	must(r.t, r.store.Retire(context.Background(), reservation.Holder))
	return keystore.Ownership{Client: "alice", Key: key, Token: reservation.Token}
}

// TestClientGoesAway: the app is not interrupted, and the retry finds the answer.
func TestClientGoesAway(t *testing.T) {
	g := newGate()
	r := start(t, func(s *setup) { s.app = g.ServeHTTP })
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/payments", strings.NewReader(`{}`))
	must(t, err)
	req.Header.Set("X-Client-Id", "alice")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", "k")
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if resp, err := http.DefaultTransport.RoundTrip(req); err == nil {
			resp.Body.Close()
		}
	}()
	<-g.inside
	cancel()
	<-gone
	want(t, r.post("k", `{}`), 409, "in-flight", false)
	close(g.leave)
	eventually(t, "the answer is recorded", func() bool { return r.post("k", `{}`).replayed() })
	r.executions(1)
}

func TestClientsDoNotMeet(t *testing.T) {
	r := start(t)
	alice := r.post("k", `{"a":1}`)
	bob := r.post("k", `{"a":1}`, "-X-Client-Id", "", "X-Client-Id", "bob")
	want(t, alice, 201, "", false)
	want(t, bob, 201, "", false)
	if alice.Body == bob.Body {
		t.Error("bob got alice's answer")
	}
	r.executions(2)
}

func TestKeyOnAnotherPathIsAnotherRequest(t *testing.T) {
	r := start(t, func(s *setup) {
		other := sampleRoute()
		other.Name, other.Path = "other", "/other"
		s.config.Routes = append(s.config.Routes, other)
	})
	want(t, r.post("k", `{}`), 201, "", false)
	got, err := r.try("POST", "/other", "k", `{}`)
	must(t, err)
	want(t, got, 422, "key-reused", false)
	r.executions(1)
}

func TestPassThroughWhenTheStoreIsDown(t *testing.T) {
	var bodies sync.Map
	r := start(t, func(s *setup) {
		s.config.Store.OnUnavailable = "PassThrough"
		s.app = func(w http.ResponseWriter, req *http.Request) {
			body := make([]byte, 100)
			n, _ := req.Body.Read(body)
			bodies.Store(string(body[:n]), true)
			w.WriteHeader(http.StatusCreated)
		}
	})
	r.store.failing(keystore.ErrUnavailable, "Reserve", "Check")
	got := r.post("k", `{"a":1}`)
	want(t, got, 201, "", false)
	if got.Header.Get("Idempotency-Status") != "unprotected" {
		t.Errorf("not marked: %v", got.Header)
	}
	if _, ok := bodies.Load(`{"a":1}`); !ok {
		t.Error("the app did not get the body")
	}
	r.store.failing(nil, "Reserve", "Check")
	eventually(t, "requests are protected again", func() bool { return r.post("k2", `{}`).Header.Get("Idempotency-Status") == "" })
}

// TestDoubtfulReservationIsGivenBack: a reservation whose answer was lost does not block the key for the life of this process.
func TestDoubtfulReservationIsGivenBack(t *testing.T) {
	r := start(t)
	lossy := &lossyStore{memStore: r.store}
	r.proxy.Load(sampleConfig(), lossy, "two")
	lossy.lose.Store(true)
	want(t, r.post("k", `{}`), 503, "store-unavailable", false)
	lossy.lose.Store(false)
	eventually(t, "the key is free", func() bool { return r.post("k", `{}`).Status == 201 })
	r.executions(1)
}

func TestOptionalKey(t *testing.T) {
	r := start(t, func(s *setup) { s.config.Routes[0].KeyRequired = false })
	want(t, r.post("", `{}`, "-X-Client-Id", ""), 201, "", false)
	want(t, r.post("", `{}`), 201, "", false)
	r.executions(2)
	want(t, r.post("", `{}`, "Idempotency-Key", ""), 400, "key-invalid", false)
	want(t, r.post("k", `{}`, "-X-Client-Id", ""), 401, "client-unidentified", false)
	want(t, r.post("k", `{}`), 201, "", false)
	want(t, r.post("k", `{}`), 201, "", true)
}

func TestReloadKeepsRequestsInFlight(t *testing.T) {
	g := newGate()
	r := start(t, func(s *setup) { s.app = g.ServeHTTP })
	var wg sync.WaitGroup
	wg.Go(func() { want(t, r.post("k", `{}`), 201, "", false) })
	<-g.inside
	config := sampleConfig()
	config.Routes[0].Path = "/elsewhere"
	next := newMemStore()
	r.proxy.Load(config, next, "two")
	if r.store.isClosed() {
		t.Error("the store was closed under a request")
	}
	close(g.leave)
	wg.Wait()
	if e := r.store.get("alice", "k"); e == nil || e.answer == nil {
		t.Error("the request in flight was not recorded where it was reserved")
	}
	eventually(t, "the old store is closed", r.store.isClosed)
	got, err := r.try("POST", "/elsewhere", "", `{}`)
	must(t, err)
	want(t, got, 400, "key-missing", false)
}
