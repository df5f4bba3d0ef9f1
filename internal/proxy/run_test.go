// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// process is Run with its files, on an opener that hands out stores by DSN.
type process struct {
	*rig
	dir    string
	admin  string
	app    *httptest.Server
	stop   context.CancelFunc
	ended  chan error
	mu     sync.Mutex
	stores map[string]*memStore
}

func (p *process) open(_ context.Context, _ proxyconfig.Config, dsn string) (keystore.Store, string, error) {
	if strings.HasPrefix(dsn, "bad") {
		return nil, "", keystore.ErrDSNInvalid
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stores[dsn] == nil {
		p.stores[dsn] = newMemStore()
	}
	return p.stores[dsn], dsn, nil
}

func (p *process) storeOf(dsn string) *memStore {
	store, _, err := p.open(context.Background(), proxyconfig.Config{}, dsn)
	must(p.t, err)
	return store.(*memStore)
}

func (p *process) write(name, content string) {
	p.t.Helper()
	must(p.t, os.WriteFile(filepath.Join(p.dir, name+".new"), []byte(content), 0o600))
	must(p.t, os.Rename(filepath.Join(p.dir, name+".new"), filepath.Join(p.dir, name)))
}

func (p *process) configure(config proxyconfig.Config) {
	p.t.Helper()
	document, err := proxyconfig.Encode(config)
	must(p.t, err)
	p.write("config.json", string(document))
}

func launch(t *testing.T, app http.HandlerFunc, change ...func(*process, *Settings)) *process {
	t.Helper()
	p := &process{rig: &rig{t: t, client: &http.Transport{DisableCompression: true}}, dir: t.TempDir(), ended: make(chan error, 1), stores: map[string]*memStore{}}
	p.app = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		p.n.Add(1)
		if app != nil {
			app(w, req)
		}
	}))
	t.Cleanup(p.app.Close)
	upstream, err := url.Parse(p.app.URL)
	must(t, err)
	p.configure(sampleConfig())
	p.write("dsn", "one\n")
	listening := make(chan [2]net.Addr, 1)
	s := Settings{
		ConfigFile: filepath.Join(p.dir, "config.json"), DSNFile: filepath.Join(p.dir, "dsn"), Upstream: upstream, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0",
		Spool: filepath.Join(p.dir, "spool"), DrainDelay: 0, DrainTimeout: 10 * time.Second, Limits: DefaultLimits(), Log: quietLogger(), Now: time.Now,
		Listening: func(traffic, admin net.Addr) { listening <- [2]net.Addr{traffic, admin} },
	}
	for _, f := range change {
		f(p, &s)
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	go func() { p.ended <- Run(ctx, s, p.open) }()
	select {
	case addresses := <-listening:
		p.url, p.admin = "http://"+addresses[0].String(), "http://"+addresses[1].String()
	case err := <-p.ended:
		t.Fatalf("ended at once: %v", err)
	}
	t.Cleanup(func() {
		stop()
		p.client.CloseIdleConnections()
		if err := <-p.ended; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
	eventually(t, "it is ready", func() bool { return p.get("/readyz").Status == 200 })
	return p
}

func (p *process) get(path string) reply {
	p.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, p.admin+path, nil)
	must(p.t, err)
	got, err := do(p.client, req)
	must(p.t, err)
	return got
}

func (p *process) metric(line string) bool {
	return strings.Contains(p.get("/metrics").Body, "\nidempotency_proxy_"+line+"\n")
}

func TestAdmin(t *testing.T) {
	p := launch(t, nil)
	if got := p.get("/livez"); got.Status != 200 {
		t.Errorf("livez %d", got.Status)
	}
	for _, line := range []string{"config_generation 1", "config_last_reload_successful 1", "dsn_last_reload_successful 1", "store_up 1", "in_flight 0"} {
		if !p.metric(line) {
			t.Errorf("no %q in\n%s", line, p.get("/metrics").Body)
		}
	}
	store := p.storeOf("one")
	store.failing(keystore.ErrUnavailable, "Reserve", "Check")
	want(t, p.post("secret-key", `{}`), 503, "store-unavailable", false)
	if got := p.get("/readyz"); got.Status != 200 || !strings.Contains(got.Body, "key store: unreachable") {
		t.Errorf("readyz %d %q", got.Status, got.Body)
	}
	if strings.Contains(p.get("/metrics").Body, "secret-key") {
		t.Error("a key is in the metrics")
	}
	store.failing(nil, "Reserve", "Check")
	eventually(t, "the store is up", func() bool { return p.metric("store_up 1") })
}

func TestReloadOfTheConfiguration(t *testing.T) {
	p := launch(t, nil)
	config := sampleConfig()
	config.Policy.Generation = 2
	config.Routes[0].Path = "/elsewhere"
	first := p.running()
	p.configure(config)
	eventually(t, "the new one is in use", func() bool { return p.metric("config_generation 2") })
	second := proxyconfig.Running{Revision: p.revision()}
	eventually(t, "it says so", func() bool { return p.running() == second })
	if first.Revision == second.Revision {
		t.Error("both revisions have one name")
	}
	want(t, p.post("", `{}`), 200, "", false)

	p.write("config.json", `{"version":1,"surprise":true}`)
	eventually(t, "the bad one is noticed", func() bool { return p.metric("config_last_reload_successful 0") })
	eventually(t, "it says so", func() bool {
		return p.running() == proxyconfig.Running{Revision: second.Revision, Refused: p.revision()}
	})
	p.write("dsn", "two")
	eventually(t, "another connection string is in use", func() bool { return p.storeOf("one").isClosed() })
	if p.running().Refused == "" {
		t.Error("another connection string makes a bad configuration good")
	}
	got, err := p.try("POST", "/elsewhere", "", `{}`)
	must(t, err)
	want(t, got, 400, "key-missing", false)

	config.Keyspace = "another"
	p.configure(config)
	config.Keyspace, config.Policy.Generation = "shop.payments", 3
	p.configure(config)
	eventually(t, "a good one is in use again", func() bool { return p.metric("config_generation 3") && p.metric("config_last_reload_successful 1") })
	eventually(t, "it says so", func() bool { return p.running() == proxyconfig.Running{Revision: p.revision()} })
	if p.storeOf("two").isClosed() {
		t.Error("the store was changed without a reason")
	}
}

// running is what the process says of its configuration.
func (p *process) running() (r proxyconfig.Running) {
	p.t.Helper()
	must(p.t, json.Unmarshal([]byte(p.get(proxyconfig.RunningPath).Body), &r))
	return r
}

// revision is that of the file.
func (p *process) revision() string {
	p.t.Helper()
	document, err := os.ReadFile(filepath.Join(p.dir, "config.json"))
	must(p.t, err)
	return proxyconfig.Revision(document)
}

func TestReloadOfTheDSN(t *testing.T) {
	p := launch(t, nil)
	want(t, p.post("k1", `{}`), 200, "", false)
	p.write("dsn", "bad")
	eventually(t, "the bad one is noticed", func() bool { return p.metric("dsn_last_reload_successful 0") })
	want(t, p.post("k1", `{}`), 200, "", true)
	p.write("dsn", "two")
	eventually(t, "the old store is closed", p.storeOf("one").isClosed)
	want(t, p.post("k2", `{}`), 200, "", false)
	if p.storeOf("two").get("alice", "k2") == nil {
		t.Error("the new store is not used")
	}
	if p.storeOf("one").retired {
		t.Error("the holder was retired: on the same database its reservations would be unknown")
	}
}

func TestBadDSNAtStart(t *testing.T) {
	p := launch(t, nil, func(p *process, _ *Settings) { p.write("dsn", "bad") })
	want(t, p.post("k", `{}`), 503, "store-unavailable", false)
	got, err := p.try("GET", "/", "", "")
	must(t, err)
	if got.Status != 200 {
		t.Errorf("what is not enforced gets %d", got.Status)
	}
	p.write("dsn", "one")
	eventually(t, "the good one is in use", func() bool { return p.post("k", `{}`).Status == 200 })
}

func TestRunRefusesABadStart(t *testing.T) {
	upstream := &url.URL{Scheme: "http", Host: "127.0.0.1:1"}
	dir := t.TempDir()
	s := Settings{ConfigFile: filepath.Join(dir, "none"), Upstream: upstream, Spool: dir, Limits: DefaultLimits(), Log: quietLogger(), Now: time.Now}
	if err := Run(context.Background(), s, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a configuration: %v", err)
	}
	must(t, os.WriteFile(s.ConfigFile, []byte("{}"), 0o600))
	if err := Run(context.Background(), s, nil); err == nil || !strings.Contains(err.Error(), "version") {
		t.Errorf("with a bad one: %v", err)
	}
	s.Limits.Waiters = 0
	if err := Run(context.Background(), s, nil); err == nil {
		t.Error("without waiters")
	}
}

// TestDrain: unready at once, then deaf, while requests in flight finish and are recorded.
func TestDrain(t *testing.T) {
	g := newGate()
	p := launch(t, g.ServeHTTP, func(_ *process, s *Settings) { s.DrainDelay = time.Minute })
	answered := make(chan reply, 1)
	go func() { answered <- p.post("k", `{}`) }()
	<-g.inside
	p.stop()
	eventually(t, "it is unready", func() bool { return p.get("/readyz").Status == 503 })
	done := make(chan reply, 1)
	go func() { got, _ := p.try("GET", "/still", "", ""); done <- got }()
	<-g.inside
	p.app.CloseClientConnections()
	close(g.leave)
	p.app.Listener.Close() // the app has ended: the delay is over early
	<-answered
	<-done
	select {
	case err := <-p.ended:
		p.ended <- err
	case <-time.After(20 * time.Second):
		t.Fatal("it did not end")
	}
	store := p.storeOf("one")
	if !store.retired || !store.isClosed() {
		t.Errorf("retired %v, closed %v", store.retired, store.closed)
	}
}

func TestDrainWaitsForRequestsInFlight(t *testing.T) {
	g := newGate()
	p := launch(t, g.ServeHTTP)
	answered := make(chan reply, 1)
	go func() { answered <- p.post("k", `{}`) }()
	<-g.inside
	p.stop()
	eventually(t, "it is deaf", func() bool {
		conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	close(g.leave)
	want(t, <-answered, 201, "", false)
	err := <-p.ended
	p.ended <- err
	if e := p.storeOf("one").get("alice", "k"); e == nil || e.answer == nil {
		t.Error("not recorded")
	}
}

func TestDrainEndsWhatTakesTooLong(t *testing.T) {
	g := newGate()
	p := launch(t, g.ServeHTTP, func(_ *process, s *Settings) { s.DrainTimeout = 50 * time.Millisecond })
	defer close(g.leave)
	answered := make(chan reply, 1)
	go func() { got, _ := p.try("POST", "/payments", "k", `{}`); answered <- got }()
	<-g.inside
	p.stop()
	err := <-p.ended
	p.ended <- err
	if got := <-answered; got.problem() != "upstream-failed" {
		t.Errorf("got %d %q", got.Status, got.Body)
	}
	if e := p.storeOf("one").get("alice", "k"); e == nil || !e.unknown {
		t.Error("not unknown")
	}
}

// TestHTTP2: with prior knowledge, on the same port.
func TestHTTP2(t *testing.T) {
	p := launch(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "x")
	})
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	for _, replayed := range []bool{false, true} {
		req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, p.url+"/payments", strings.NewReader("{}"))
		must(t, err)
		req.Header.Set("X-Client-Id", "alice")
		req.Header.Set("Idempotency-Key", "k")
		resp, err := transport.RoundTrip(req)
		must(t, err)
		body, err := io.ReadAll(resp.Body)
		must(t, err)
		resp.Body.Close()
		if resp.ProtoMajor != 2 || resp.StatusCode != http.StatusCreated || string(body) != "x" || (resp.Header.Get(headerReplayed) == "true") != replayed {
			t.Errorf("got HTTP/%d %d %q %v", resp.ProtoMajor, resp.StatusCode, body, resp.Header)
		}
	}
	p.executions(1)
}

// TestSlowStreamOverHTTP2: the time that a client has for a part of an answer does not run while there is none.
func TestSlowStreamOverHTTP2(t *testing.T) {
	next := make(chan string)
	p := launch(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for event := range next {
			_, _ = io.WriteString(w, event)
			_ = http.NewResponseController(w).Flush()
		}
	}, func(_ *process, s *Settings) { s.Limits.ClientTimeout = 200 * time.Millisecond })
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, p.url+"/payments", strings.NewReader("{}"))
	must(t, err)
	req.Header.Set("X-Client-Id", "alice")
	req.Header.Set("Idempotency-Key", "k")
	go func() { next <- "1" }()
	resp, err := transport.RoundTrip(req)
	must(t, err)
	defer resp.Body.Close()
	var one [1]byte
	_, err = io.ReadFull(resp.Body, one[:])
	must(t, err)
	<-time.After(600 * time.Millisecond)
	next <- "2"
	if _, err = io.ReadFull(resp.Body, one[:]); err != nil || one[0] != '2' {
		t.Errorf("got %q %v", one, err)
	}
	close(next)
	_, err = io.Copy(io.Discard, resp.Body)
	must(t, err)
}

// TestProfiles: off unless they are asked for.
func TestProfiles(t *testing.T) {
	for _, on := range []bool{false, true} {
		p := launch(t, nil, func(_ *process, s *Settings) { s.Pprof = on })
		if got := p.get("/debug/pprof/goroutine?debug=1"); (got.Status == 200) != on {
			t.Errorf("profiles on %v: got %d", on, got.Status)
		}
	}
}
