// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

func quietLogger() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestLimitsArePositive(t *testing.T) {
	must(t, DefaultLimits().Validate())
	fields := reflect.TypeFor[Limits]()
	for i := range fields.NumField() {
		l := DefaultLimits()
		reflect.ValueOf(&l).Elem().Field(i).SetInt(0)
		if l.Validate() == nil {
			t.Errorf("%s may be 0", fields.Field(i).Name)
		}
	}
	l := DefaultLimits()
	l.StoreTimeout = l.Lease
	if l.Validate() == nil {
		t.Error("a call to the store may take as long as the lease")
	}
}

func TestBodyLimit(t *testing.T) {
	for _, row := range []struct {
		bytes  int
		status int
	}{{999, 201}, {1000, 201}, {1001, 413}, {100_000, 413}} {
		for _, declared := range []bool{true, false} {
			r := start(t, func(s *setup) {
				s.limits.BodyMemoryBytes, s.limits.BodyBytes = 100, 1000
				s.app = func(w http.ResponseWriter, req *http.Request) {
					n, _ := io.Copy(io.Discard, req.Body)
					w.WriteHeader(http.StatusCreated)
					_, _ = fmt.Fprint(w, n)
				}
			})
			body := io.Reader(strings.NewReader(strings.Repeat("x", row.bytes)))
			if !declared {
				body = io.MultiReader(body)
			}
			req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, r.url+"/payments", body)
			must(t, err)
			req.Header.Set("X-Client-Id", "alice")
			req.Header.Set("Idempotency-Key", "k")
			got, err := do(r.client, req)
			must(t, err)
			if got.Status != row.status || row.status == 201 && got.Body != fmt.Sprint(row.bytes) {
				t.Errorf("%d bytes, declared %v: got %d %s", row.bytes, declared, got.Status, got.Body)
			}
			eventually(t, "what the bodies took is given back", func() bool {
				return r.proxy.memory.used.Load() == 0 && r.proxy.spool.files.used.Load() == 0
			})
		}
	}
}

func TestBodiesLeaveNoFiles(t *testing.T) {
	r := start(t, func(s *setup) { s.limits.BodyMemoryBytes = 10 })
	want(t, r.post("k", strings.Repeat("x", 1000)), 201, "", false)
	entries, err := os.ReadDir(r.proxy.spool.dir)
	must(t, err)
	if len(entries) != 1 || entries[0].Name() != journalName {
		t.Errorf("spool holds %v", entries)
	}
}

func TestSharedBounds(t *testing.T) {
	t.Run("memory spills", func(t *testing.T) {
		r := start(t, func(s *setup) { s.limits.MemoryBytes = 10 })
		want(t, r.post("k", strings.Repeat("x", 1000)), 201, "", false)
	})
	t.Run("files run out", func(t *testing.T) {
		r := start(t, func(s *setup) { s.limits.BodyMemoryBytes, s.limits.SpillBytes = 10, 1000 })
		want(t, r.post("k1", strings.Repeat("x", 1000)), 201, "", false)
		want(t, r.post("k2", strings.Repeat("x", 1001)), 503, "overloaded", false)
		r.executions(1)
	})
	t.Run("memory for answers runs out", func(t *testing.T) {
		size := 1000
		r := start(t, func(s *setup) {
			s.limits.MemoryBytes = 1000
			s.app = func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("x", size)) }
		})
		want(t, r.post("k1", ""), 200, "", false)
		want(t, r.post("k1", ""), 200, "", true)
		size++
		if got := r.post("k2", ""); got.Status != 200 || len(got.Body) != 1001 || got.Err != nil {
			t.Errorf("got %d, %d bytes, %v", got.Status, len(got.Body), got.Err)
		}
		want(t, r.post("k2", ""), 409, "answer-not-kept", false)
		r.executions(2)
	})
	t.Run("places in flight run out", func(t *testing.T) {
		g := newGate()
		r := start(t, func(s *setup) { s.limits.InFlight, s.app = 2, g.ServeHTTP })
		var wg sync.WaitGroup
		for _, key := range []string{"k1", "k2"} {
			wg.Go(func() { want(t, r.post(key, `{}`), 201, "", false) })
			<-g.inside
		}
		want(t, r.post("k3", `{}`), 503, "overloaded", false)
		close(g.leave)
		wg.Wait()
		want(t, r.post("k3", `{}`), 201, "", false)
	})
}

func TestHeaderLimit(t *testing.T) {
	r := start(t, func(s *setup) { s.limits.HeaderBytes = 16 << 10 })
	head := "POST /payments HTTP/1.1\nHost: x\nConnection: close\nX-Client-Id: alice\nIdempotency-Key: k\nContent-Length: 0\nX: %s\n\n"
	room := 16<<10 - len(strings.ReplaceAll(head, "\n", "\r\n")) + len("%s")
	for extra, status := range map[int]int{0: 201, serverSlack + 1: 431} {
		if got := r.raw(fmt.Sprintf(head, strings.Repeat("x", room+extra))); got.Status != status {
			t.Errorf("%d bytes over: got %d, want %d", extra, got.Status, status)
		}
	}
}

func TestSlowClient(t *testing.T) {
	r := start(t, func(s *setup) { s.limits.ClientTimeout = 100 * time.Millisecond })
	got := r.raw("POST /payments HTTP/1.1\nHost: x\nX-Client-Id: alice\nIdempotency-Key: k\nContent-Length: 10\n\nx")
	if got.Status != 408 || got.problem() != "body-timeout" {
		t.Errorf("body: got %d %q", got.Status, got.Body)
	}
	if got := r.dribble(); got.problem() != "body-timeout" {
		t.Errorf("one byte now and then: got %d %q", got.Status, got.Body)
	}
	if got := r.raw("POST /payments HTTP/1.1\nHost: x"); got.Status != 0 {
		t.Errorf("header: got %d %q", got.Status, got.Body)
	}
	r.executions(0)
}

// dribble sends a body of 1000 bytes, one every 10 ms, until it is answered.
func (r *rig) dribble() reply {
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	must(r.t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "POST /payments HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Client-Id: alice\r\nIdempotency-Key: k\r\nContent-Length: 1000\r\n\r\n")
	must(r.t, err)
	answered := make(chan reply)
	go func() { answered <- readReply(r.t, conn) }()
	for {
		select {
		case got := <-answered:
			return got
		case <-time.After(10 * time.Millisecond):
			_, _ = conn.Write([]byte("x"))
		}
	}
}

func TestIdleConnectionEnds(t *testing.T) {
	r := start(t, func(s *setup) { s.limits.IdleTimeout = 50 * time.Millisecond })
	got := r.raw("GET / HTTP/1.1\nHost: x\n\n") // reads until the proxy ends the connection
	if got.Status != 201 {
		t.Errorf("got %d", got.Status)
	}
}

// TestClientThatDoesNotRead: the app's answer is recorded although nobody takes it.
func TestClientThatDoesNotRead(t *testing.T) {
	r := start(t, func(s *setup) {
		s.limits.ClientTimeout = 3 * time.Second
		s.config.Routes[0].ResponseMaxBytes, s.config.Routes[0].TimeoutMillis = 10, 2000 // the app's time does not run while the client takes its own
		s.app = func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("x", 16<<20))
		}
	})
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	must(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "POST /payments HTTP/1.1\r\nHost: x\r\nX-Client-Id: alice\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n")
	must(t, err)
	eventually(t, "the answer is recorded", func() bool {
		e := r.store.get("alice", "k")
		return e != nil && e.answer != nil
	})
	r.executions(1)
}

// TestExpectContinue: an error that needs no body is sent without asking for it.
func TestExpectContinue(t *testing.T) {
	r := start(t)
	head := "POST /payments HTTP/1.1\nHost: x\nConnection: close\nX-Client-Id: alice\nExpect: 100-continue\nContent-Length: 2\n"
	if got := r.raw(head + "\n"); got.Status != 400 || got.problem() != "key-missing" {
		t.Errorf("got %d %q", got.Status, got.Body)
	}
	if got := r.raw(head + "Idempotency-Key: k\n\n{}"); got.Status != 100 || !strings.Contains(got.Body, "201 Created") {
		t.Errorf("got %d %q", got.Status, got.Body)
	}
	r.executions(1)
}

func TestUpgrade(t *testing.T) {
	r := start(t)
	for protocol, status := range map[string]int{"websocket": 400, "h2c, websocket": 400, "h2c": 201} {
		got := r.post(protocol[:2], `{}`, "Connection", "Upgrade", "Upgrade", protocol)
		if got.Status != status {
			t.Errorf("%s: got %d", protocol, got.Status)
		}
	}
	r.executions(1)
}

// TestConnectionNamesWhatCounts: the app must not get another request than the one that the key stands for.
func TestConnectionNamesWhatCounts(t *testing.T) {
	for _, row := range []struct {
		connection string
		status     int
		reason     string
	}{
		{"X-Client-Id", 400, "the app would not know whose it is"},
		{"close, idempotency-key", 400, "names are compared without case, in a list"},
		{"Content-Type", 400, "part of the fingerprint"},
		{"Content-Encoding", 400, "part of the fingerprint"},
		{"X-Tenant", 400, "chosen for the fingerprint"},
		{"X-HTTP-Method-Override", 400, "part of the fingerprint"},
		{"Authorization", 400, "it says whose it is, to the app"},
		{"X-Hop", 201, "a field of this hop"},
		{"close, ,X-Hop,", 201, "an empty element names nothing"},
	} {
		r := start(t, func(s *setup) { s.config.Routes[0].FingerprintHeaders = []string{"X-Tenant"} })
		got := r.raw("POST /payments HTTP/1.1\nHost: x\nX-Client-Id: alice\nIdempotency-Key: k\nContent-Length: 2\nConnection: close\nConnection: " + row.connection + "\n\n{}")
		if got.Status != row.status || got.Status == 400 && got.problem() != "connection-invalid" {
			t.Errorf("%s: got %d %s, want %d: %s", row.connection, got.Status, got.Body, row.status, row.reason)
		}
	}
	t.Run("Authorization", func(t *testing.T) {
		r := start(t, func(s *setup) { s.config.Client = proxyconfig.Client{Type: "Authorization"} })
		want(t, r.post("k", `{}`, "Authorization", "Bearer a", "Connection", "close,"), 201, "", false)
	})
}

func TestEveryProblem(t *testing.T) {
	slugs := map[string]bool{}
	for _, k := range kinds {
		if slugs[k.slug] || k.status < 400 || k.title == "" || k.outcome == "" {
			t.Errorf("row %+v", k)
		}
		slugs[k.slug] = true
		if got := kindOf(fmt.Errorf("%w: detail", k.err)); got.slug != k.slug {
			t.Errorf("%s wrapped is %s", k.slug, got.slug)
		}
	}
}

func TestProblemDocument(t *testing.T) {
	r := start(t)
	got := r.post("<b>", `{}`, "-X-Client-Id", "")
	want(t, got, 401, "client-unidentified", false)
	for name, value := range map[string]string{
		"Link": `</.well-known/idempotency>; rel="describedby"`, "Cache-Control": "no-store", "Www-Authenticate": `IdempotencyClient header="X-Client-Id"`,
	} {
		if got.Header.Get(name) != value {
			t.Errorf("%s is %q", name, got.Header.Get(name))
		}
	}
	if !strings.Contains(got.Body, `"key":"?b?"`) || !strings.Contains(got.Body, `"retryable":false`) {
		t.Errorf("document %s", got.Body)
	}
}
