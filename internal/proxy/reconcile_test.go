// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// word is what the app says when it is asked.
type word = http.HandlerFunc

func says(status int) word {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/payments/7")
		w.Header().Set("Set-Cookie", "a=b")
		w.WriteHeader(status)
		if status != http.StatusNoContent && status != http.StatusNotModified {
			_, _ = io.WriteString(w, "as it was")
		}
	}
}

// inquiry is a rig whose policy asks the app at a path, with an entry under the key "k" whose outcome is unknown.
type inquiry struct {
	*rig
	word  atomic.Pointer[word]
	asked chan *http.Request
}

func startInquiry(t *testing.T, change ...func(*setup)) *inquiry {
	q := &inquiry{asked: make(chan *http.Request, 100)}
	q.rig = start(t, append([]func(*setup){func(s *setup) {
		s.config.Routes[0].OnUnknownOutcome, s.config.Routes[0].ReconcilePath = "Reconcile", "/reconcile%2Fpayments"
		s.app = func(w http.ResponseWriter, req *http.Request) {
			if req.RequestURI != "/reconcile%2Fpayments" {
				w.WriteHeader(http.StatusCreated)
				return
			}
			q.n.Add(-1) // asking is not executing
			q.asked <- req
			(*q.word.Load())(w, req)
		}
	}}, change...)...)
	q.orphan("k", `{}`)
	return q
}

func (q *inquiry) says(w word) *inquiry {
	q.word.Store(&w)
	return q
}

// TestReconcile: what each answer of the app comes to. After one that leaves the outcome unknown the app is asked again.
func TestReconcile(t *testing.T) {
	const (
		replayed = iota
		executed
		stillUnknown
		notKept
	)
	hang := func(w http.ResponseWriter, req *http.Request) { <-req.Context().Done() }
	part := func(then func(http.ResponseWriter, *http.Request)) word {
		return func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Length", "9")
			_, _ = io.WriteString(w, "as it")
			_ = http.NewResponseController(w).Flush()
			then(w, req)
		}
	}
	abort := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	for _, row := range []struct {
		name string
		word word
		want int
	}{
		{"200", says(200), replayed},
		{"404", says(404), executed},
		{"201: that would be the answer of the execution, asking executes nothing", says(201), stillUnknown},
		{"202: it is still at work", says(202), stillUnknown},
		{"204", says(204), stillUnknown},
		{"206", says(206), stillUnknown},
		{"302 is not followed", says(302), stillUnknown},
		{"304", says(304), stillUnknown},
		{"400", says(400), stillUnknown},
		{"401", says(401), stillUnknown},
		{"403", says(403), stillUnknown},
		{"405: there is no such path for GET", says(405), stillUnknown},
		{"409: it does not know", says(409), stillUnknown},
		{"410", says(410), stillUnknown},
		{"429", says(429), stillUnknown},
		{"500", says(500), stillUnknown},
		{"503", says(503), stillUnknown},
		{"no answer within the route's time", hang, stillUnknown},
		{"half an answer within the route's time", part(hang), stillUnknown},
		{"half an answer", part(abort), stillUnknown},
		{"no answer", abort, stillUnknown},
		{"more than the route keeps", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("x", 101)) }, notKept},
		{"as much as the route keeps", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("x", 100)) }, replayed},
		{"no body", func(http.ResponseWriter, *http.Request) {}, replayed},
	} {
		t.Run(row.name, func(t *testing.T) {
			q := startInquiry(t, func(s *setup) {
				s.config.Routes[0].ResponseMaxBytes, s.config.Routes[0].TimeoutMillis = 100, 60_000
				if strings.Contains(row.name, "the route's time") {
					s.config.Routes[0].TimeoutMillis = 100
				}
			}).says(row.word)
			got := q.post("k", `{}`)
			req := <-q.asked
			if req.Method != http.MethodGet || req.Header.Get("Idempotency-Key") != "k" || req.Header.Get("X-Client-Id") != "alice" ||
				req.Header.Get("Idempotency-Reservation") == "" {
				t.Errorf("the app was asked %s %v", req.Method, req.Header)
			}
			q.says(says(200))
			switch again := q.post("k", `{}`); row.want {
			case replayed:
				want(t, got, 200, "", true)
				want(t, again, 200, "", true)
				if got.Header.Get("Set-Cookie") != "" || got.Body != again.Body {
					t.Errorf("replayed %q, then %q, with %v", got.Body, again.Body, got.Header)
				}
				q.executions(0)
			case executed:
				want(t, got, 201, "", false)
				want(t, again, 201, "", true)
				q.executions(1)
			case stillUnknown:
				want(t, got, 409, "outcome-unknown", false)
				want(t, again, 200, "", true)
				if again.Body != "as it was" || again.Header.Get("Location") != "/payments/7" {
					t.Errorf("replayed %q %v", again.Body, again.Header)
				}
				<-q.asked
				q.executions(0)
			case notKept:
				want(t, got, 409, "answer-not-kept", false)
				want(t, again, 409, "answer-not-kept", false)
				q.executions(0)
			}
			if len(q.asked) > 0 {
				t.Error("the app was asked once more than needed")
			}
		})
	}
}

// TestReconcileContradicts: the first word that settles the entry stands, whatever the app would say later.
func TestReconcileContradicts(t *testing.T) {
	q := startInquiry(t).says(says(200))
	want(t, q.post("k", `{}`), 200, "", true)
	q.says(says(404))
	want(t, q.post("k", `{}`), 200, "", true)
	q.executions(0)

	q = startInquiry(t).says(says(404))
	want(t, q.post("k", `{}`), 201, "", false)
	q.says(says(200))
	want(t, q.post("k", `{}`), 201, "", true)
	q.executions(1)
	if n := len(q.asked); n != 1 {
		t.Errorf("the app was asked %d times", n)
	}
}

// TestReconcileAsksOnce: while the app is being asked others are told to wait, also when the one who asks has hung up.
func TestReconcileAsksOnce(t *testing.T) {
	answer := make(chan struct{})
	q := startInquiry(t).says(func(w http.ResponseWriter, req *http.Request) {
		<-answer
		says(200)(w, req)
	})
	first := make(chan reply, 1)
	go func() { first <- q.post("k", `{}`) }()
	<-q.asked
	want(t, q.post("k", `{}`), 409, "in-flight", false)
	close(answer)
	want(t, <-first, 200, "", true)
	if len(q.asked) > 0 {
		t.Error("the app was asked twice")
	}
}

// TestReconcileAsksAgain: when the execution after a 404 fails, the app has the word once more: the 404 was about what was before.
func TestReconcileAsksAgain(t *testing.T) {
	var down atomic.Bool
	down.Store(true)
	var q *inquiry
	q = startInquiry(t, func(s *setup) {
		ask := s.app
		s.app = func(w http.ResponseWriter, req *http.Request) {
			if req.Method == http.MethodPost && down.Load() {
				q.n.Add(-1)
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			ask(w, req)
		}
	})
	q.says(says(404))
	if got := q.post("k", `{}`); got.Status != http.StatusServiceUnavailable {
		t.Errorf("got %d", got.Status)
	}
	down.Store(false)
	want(t, q.post("k", `{}`), 201, "", false)
	q.executions(1)
	if n := len(q.asked); n != 2 {
		t.Errorf("the app was asked %d times", n)
	}
}
