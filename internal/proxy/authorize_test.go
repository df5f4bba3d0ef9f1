// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// gatekeeper is an app that answers /may with status, and remembers the last question.
type gatekeeper struct {
	status atomic.Int64 // 0: no answer at all
	asked  atomic.Int64
	mu     sync.Mutex
	last   *http.Request
}

func (g *gatekeeper) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/may" {
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte("x"))
		return
	}
	g.asked.Add(1)
	g.mu.Lock()
	g.last = r
	g.mu.Unlock()
	status := int(g.status.Load())
	if status == 0 {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="shop"`)
	w.Header().Set("Location", "/payments")
	w.WriteHeader(status)
}

func guarded(t *testing.T, change ...func(*setup)) (*rig, *gatekeeper) {
	g := &gatekeeper{}
	return start(t, append(change, func(s *setup) { s.app, s.config.Routes[0].ReplayAuthorization = g.ServeHTTP, "/may" })...), g
}

func TestReplayAuthorization(t *testing.T) {
	for _, row := range []struct {
		app, status int
		problem     string
		replayed    bool
	}{
		{200, 201, "", true},
		{204, 201, "", true},
		{299, 201, "", true},
		{301, 503, "replay-undecided", false},
		{307, 503, "replay-undecided", false},
		{400, 503, "replay-undecided", false},
		{401, 401, "replay-unauthorized", false},
		{403, 403, "replay-forbidden", false},
		{404, 503, "replay-undecided", false},
		{500, 503, "replay-undecided", false},
		{0, 503, "replay-undecided", false},
	} {
		r, g := guarded(t)
		want(t, r.post("k", `{}`), 201, "", false)
		if g.asked.Load() != 0 {
			t.Error("asked before an execution")
		}
		g.status.Store(int64(row.app))
		got := r.post("k", `{}`)
		want(t, got, row.status, row.problem, row.replayed)
		if challenge := got.Header.Get("WWW-Authenticate"); (challenge != "") != (row.app == 401) {
			t.Errorf("%d: challenge %q", row.app, challenge)
		}
		r.executions(1 + g.asked.Load())
		if g.asked.Load() != 1 {
			t.Errorf("%d: asked %d times, want once", row.app, g.asked.Load())
		}
		if row.replayed {
			g.status.Store(403) // what was allowed once is not allowed for ever
			want(t, r.post("k", `{}`), 403, "replay-forbidden", false)
		}
	}
}

// TestReplayAuthorizationInTime: an app that says nothing within the route's time has not said yes.
func TestReplayAuthorizationInTime(t *testing.T) {
	leave := make(chan struct{})
	r := start(t, func(s *setup) {
		s.config.Routes[0].ReplayAuthorization, s.config.Routes[0].TimeoutMillis = "/may", 100
		s.app = func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Path == "/may" {
				<-leave
			}
			w.WriteHeader(http.StatusCreated)
		}
	})
	defer close(leave)
	want(t, r.post("k", `{}`), 201, "", false)
	want(t, r.post("k", `{}`), 503, "replay-undecided", false)
}

// TestReplayAuthorizationAsksOneQuestion: with credentials, and with nothing by which a client could make another question of it.
func TestReplayAuthorizationAsksOneQuestion(t *testing.T) {
	r, g := guarded(t, func(s *setup) { s.config.Routes[0].FingerprintHeaders = []string{"X-Tenant"} })
	fields := []string{
		"Authorization", "Bearer a", "Cookie", "s=1", "X-Api-Key", "k", "X-Tenant", "t1", "X-Original-Url", "/public", "X-Rewrite-Url", "/public", "X-Forwarded-Prefix", "/public",
		"Idempotency-Replay-Method", "GET", "Idempotency-Replay-Target", "/public", "Range", "bytes=0-1", "If-None-Match", "*", "Idempotency_Replay_Target", "/public",
	}
	g.status.Store(200)
	for _, replayed := range []bool{false, true} {
		got, err := r.try("POST", "/payments?x=1", "k", `{}`, fields...)
		must(t, err)
		want(t, got, 201, "", replayed)
	}
	header := g.last.Header.Clone()
	header.Del("X-Forwarded-For")
	header.Del("Accept-Encoding")
	if diff := cmp.Diff(http.Header{
		"Authorization": {"Bearer a"}, "Cookie": {"s=1"}, "X-Api-Key": {"k"}, "X-Tenant": {"t1"}, "X-Client-Id": {"alice"},
		"Idempotency-Replay-Method": {"POST"}, "Idempotency-Replay-Target": {"/payments?x=1"},
	}, header); diff != "" {
		t.Errorf("the question's header (-want +got):\n%s", diff)
	}
	if g.last.Method != http.MethodGet || g.last.RequestURI != "/may" || g.last.Host != strings.TrimPrefix(r.url, "http://") {
		t.Errorf("asked %s %s of %s", g.last.Method, g.last.RequestURI, g.last.Host)
	}
}

// TestReplayAuthorizationBySpelling: however a client spells the path and the method, it gets nothing without the app's word.
func TestReplayAuthorizationBySpelling(t *testing.T) {
	for _, path := range []string{"/payments", "//payments", "/./payments", "/x/../payments", "/x/..%2Fpayments", "/%70ayments", "/payments;a=b", "/PAYMENTS", "/payments/", `/x\..\payments`} {
		r, g := guarded(t)
		text := "POST " + path + " HTTP/1.1\nHost: a\nX-Client-Id: alice\nIdempotency-Key: k\nContent-Length: 0\nConnection: close\n\n"
		if got := r.raw(text); got.Status != 201 {
			t.Fatalf("%s: got %d %q", path, got.Status, got.Body)
		}
		g.status.Store(403)
		want(t, r.raw(text), 403, "replay-forbidden", false)
	}
}

// TestReplayAuthorizationOfEveryReplay: of an answer that was not kept, and of one that a request waited for, too.
func TestReplayAuthorizationOfEveryReplay(t *testing.T) {
	r, g := guarded(t, func(s *setup) { s.config.Routes[0].ResponseMaxBytes = 0 })
	g.status.Store(403)
	want(t, r.post("k", `{}`), 201, "", false)
	want(t, r.post("k", `{}`), 403, "replay-forbidden", false)

	inside, leave := make(chan struct{}), make(chan struct{})
	w := start(t, func(s *setup) {
		s.config.Routes[0].ReplayAuthorization, s.config.Routes[0].InFlight, s.config.Routes[0].MaxWaitMillis = "/may", "Wait", 30_000
		s.app = func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Path == "/may" {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			close(inside)
			<-leave
			w.WriteHeader(http.StatusCreated)
		}
	})
	var both sync.WaitGroup
	both.Go(func() { want(t, w.post("k", `{}`), 201, "", false) })
	<-inside
	both.Go(func() {
		if got := w.post("k", `{}`); got.problem() != "replay-forbidden" {
			t.Errorf("whoever waited gets %d %q", got.Status, got.Body)
		}
	})
	eventually(t, "one waits", func() bool { return w.proxy.waiters.used.Load() == 1 })
	close(leave)
	both.Wait()
}
