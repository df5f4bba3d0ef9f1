// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// sampleConfig enforces POST /payments for the client in X-Client-Id.
func sampleConfig() proxyconfig.Config {
	return proxyconfig.Config{
		Version: proxyconfig.Version, Policy: proxyconfig.Policy{Namespace: "shop", Name: "payments", Generation: 1},
		Keyspace: "shop.payments", Mode: "Enforce", Store: proxyconfig.Store{Type: "Postgres", Schema: "idempotency", OnUnavailable: "Reject"},
		Client: proxyconfig.Client{Type: "Header", Header: "X-Client-Id"},
		Routes: []proxyconfig.Route{sampleRoute()},
	}
}

func sampleRoute() proxyconfig.Route {
	return proxyconfig.Route{
		Name: "create-payment", Methods: []string{"POST"}, Path: "/payments", KeyRequired: true, KeyHeader: "Idempotency-Key", KeyMaxLength: 255,
		WindowMillis: time.Hour.Milliseconds(), CanonicalJSON: true, InFlight: "Reject", MaxWaitMillis: 2000, OnUnknownOutcome: "Block",
		ResponseMaxBytes: 1 << 20, TimeoutMillis: 60_000,
	}
}

// rig is a proxy on a socket in front of an app on a socket.
type rig struct {
	t        *testing.T
	store    *memStore
	proxy    *Proxy
	url      string
	registry *prometheus.Registry
	client   *http.Transport
	n        atomic.Int64 // executions of the app
	counter  *rig         // of a raw app
	closed   bool         // by the test
}

type setup struct {
	config proxyconfig.Config
	limits Limits
	app    http.HandlerFunc
	url    string // of an app of the test's own, instead of app
	store  keystore.Store
	spool  string
	now    func() time.Time
	trust  *tls.Config
}

// start runs a rig. The app counts and then does what app says: by default it answers 201 with the count.
func start(t *testing.T, change ...func(*setup)) *rig {
	t.Helper()
	s := &setup{config: sampleConfig(), limits: DefaultLimits(), spool: t.TempDir(), now: time.Now}
	r := &rig{t: t, store: newMemStore(), registry: prometheus.NewRegistry(), client: &http.Transport{DisableCompression: true}}
	for _, f := range change {
		f(s)
	}
	if s.store == nil {
		s.store = r.store
	}
	if s.url == "" {
		s.url = r.startApp(s.app)
	}
	upstream, err := url.Parse(s.url)
	must(t, err)
	r.proxy, err = New(Options{Upstream: upstream, UpstreamTLS: s.trust, Spool: s.spool, Limits: s.limits, Registry: r.registry, Log: slog.New(slog.DiscardHandler), Now: s.now})
	must(t, err)
	r.proxy.Load(s.config, s.store, "one")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := trafficServer(Settings{Limits: s.limits, Log: slog.New(slog.DiscardHandler)}, r.proxy)
	go func() { _ = server.Serve(listener) }()
	r.url = "http://" + listener.Addr().String()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		r.client.CloseIdleConnections()
		r.proxy.EndRequests()
		server.Close()
		_ = r.proxy.wait(ctx)
		if !r.closed {
			_ = r.proxy.Close(ctx)
		}
	})
	return r
}

func (r *rig) startApp(app http.HandlerFunc) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		n := r.n.Add(1)
		if app != nil {
			app(w, req)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(n)
	}))
	r.t.Cleanup(server.Close)
	return server.URL
}

func (r *rig) executions(want int64) {
	r.t.Helper()
	if got := r.n.Load(); got != want {
		r.t.Errorf("the app executed %d times, want %d", got, want)
	}
}

// reply is a whole answer.
type reply struct {
	Status  int
	Header  http.Header
	Trailer http.Header
	Body    string
	Err     error // of reading the body
}

func (r reply) replayed() bool { return r.Header.Get(headerReplayed) == "true" }

// problem is the slug of a problem document; "" for anything else.
func (r reply) problem() string {
	var p problem
	if r.Header.Get("Content-Type") != "application/problem+json" || json.Unmarshal([]byte(r.Body), &p) != nil {
		return ""
	}
	return strings.TrimPrefix(p.Type, problemBase)
}

// post sends a payment; fields are header names and values in turn, "-Name" takes one away.
func (r *rig) post(key, body string, fields ...string) reply {
	r.t.Helper()
	got, err := r.try("POST", "/payments", key, body, fields...)
	must(r.t, err)
	return got
}

func (r *rig) try(method, path, key, body string, fields ...string) (reply, error) {
	req, err := http.NewRequestWithContext(context.Background(), method, r.url+path, io.NopCloser(strings.NewReader(body)))
	if err != nil {
		return reply{}, err
	}
	req.ContentLength = int64(len(body))
	if body == "" {
		req.Body = nil
	}
	req.Header.Set("X-Client-Id", "alice")
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header["Idempotency-key"] = []string{key} // spelled so that this client's transport does not repeat it either
	}
	for i := 0; i+1 < len(fields); i += 2 {
		if name, ok := strings.CutPrefix(fields[i], "-"); ok {
			req.Header.Del(name)
			continue
		}
		req.Header.Add(fields[i], fields[i+1])
	}
	return do(r.client, req)
}

func do(transport http.RoundTripper, req *http.Request) (reply, error) {
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, resp.Trailer, string(body), err}, nil
}

// want checks status, problem and replay of an answer.
func want(t *testing.T, got reply, status int, problem string, replayed bool) {
	t.Helper()
	if got.Status != status || got.problem() != problem || got.replayed() != replayed || got.Err != nil {
		t.Fatalf("got %d problem %q replayed %v error %v body %q, want %d %q %v", got.Status, got.problem(), got.replayed(), got.Err, got.Body, status, problem, replayed)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually polls until ok or half a minute has gone.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("never happened: %s", what)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// raw sends bytes on a fresh connection and reads the answer to a request with that method.
func (r *rig) raw(text string) reply {
	r.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	must(r.t, err)
	defer conn.Close()
	must(r.t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = io.WriteString(conn, strings.ReplaceAll(text, "\n", "\r\n"))
	must(r.t, err)
	return readReply(r.t, conn)
}

func readReply(t *testing.T, conn net.Conn) reply {
	t.Helper()
	var buffer bytes.Buffer
	_, _ = io.Copy(&buffer, conn)
	head, body, _ := strings.Cut(buffer.String(), "\r\n\r\n")
	got := reply{Header: http.Header{}, Body: body}
	for i, line := range strings.Split(head, "\r\n") {
		if i == 0 {
			if len(line) > 12 {
				got.Status = int(line[9]-'0')*100 + int(line[10]-'0')*10 + int(line[11]-'0')
			}
			continue
		}
		name, value, _ := strings.Cut(line, ": ")
		got.Header.Add(name, value)
	}
	return got
}

// stepClock is the system's, and steps ahead when it is told to.
type stepClock struct{ ahead atomic.Int64 }

func (c *stepClock) now() time.Time        { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *stepClock) step(by time.Duration) { c.ahead.Add(int64(by)) }
