// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
	"github.com/idempotency-dev/operator/internal/retention"
)

// asProxy makes the test binary the program itself, so that tests can end a real process.
const asProxy = "IDEMPOTENCY_TEST_AS_PROXY"

func TestMain(m *testing.M) {
	if os.Getenv(asProxy) != "" {
		main()
		return
	}
	pgtest.Main(m)
}

// world is a keyspace on a real database and an app, for proxies to come and go.
type world struct {
	t   *testing.T
	dir string
	dsn string
	app *httptest.Server
	n   atomic.Int64 // executions of the app
}

func newWorld(t *testing.T, app http.HandlerFunc, change ...func(*proxyconfig.Config)) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), dsn: pgtest.NewDatabase(t)}
	config := proxyconfig.Config{
		Version: proxyconfig.Version, Keyspace: "shop.payments", Mode: "Enforce", Store: proxyconfig.Store{Type: "Postgres", Schema: "idempotency", OnUnavailable: "Reject"},
		Client: proxyconfig.Client{Type: "Header", Header: "X-Client-Id"},
		Routes: []proxyconfig.Route{{
			Name: "create-payment", Methods: []string{"POST"}, Path: "/payments", KeyRequired: true, KeyHeader: "Idempotency-Key", KeyMaxLength: 255,
			WindowMillis: time.Hour.Milliseconds(), CanonicalJSON: true, InFlight: "Reject", OnUnknownOutcome: "Block", ResponseMaxBytes: 1 << 20, TimeoutMillis: 60_000,
		}},
	}
	for _, f := range change {
		f(&config)
	}
	document, err := proxyconfig.Encode(config)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(w.dir, "config.json"), document, 0o600))
	must(t, os.WriteFile(filepath.Join(w.dir, "dsn"), []byte(w.dsn+"\n"), 0o600))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	admin, err := postgres.OpenAdmin(ctx, w.dsn, "idempotency")
	must(t, err)
	defer admin.Close()
	must(t, admin.Migrate(ctx))
	must(t, admin.EnsureKeyspace(ctx, config.Keyspace, ""))
	_, err = retention.Run(ctx, admin.Catalogue(config.Keyspace), retention.Settings{CreateAhead: 1}, retention.SystemClock{})
	must(t, err)
	w.app = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		n := w.n.Add(1)
		if app != nil {
			app(rw, r)
			return
		}
		rw.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(rw).Encode(n)
	}))
	t.Cleanup(w.app.Close)
	return w
}

// instance is a running proxy process.
type instance struct {
	w   *world
	cmd *exec.Cmd
	url string
	log chan string // what it wrote after it began to serve
}

// proxy starts a process on the spool of that name.
func (w *world) proxy(spool string, args ...string) *instance {
	w.t.Helper()
	p := &instance{w: w, log: make(chan string, 1)}
	p.cmd = exec.Command(os.Args[0], append([]string{
		"--config", filepath.Join(w.dir, "config.json"), "--dsn-file", filepath.Join(w.dir, "dsn"), "--spool", filepath.Join(w.dir, spool),
		"--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--drain-delay", "0s", "--lease", "2s", "--store-timeout", "1s",
	}, args...)...)
	p.cmd.Env = append(os.Environ(), asProxy+"=1", "IDEMPOTENCY_UPSTREAM="+w.app.URL)
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	must(w.t, err)
	must(w.t, p.cmd.Start())
	w.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var entry struct{ Msg, Listen string }
		must(w.t, json.Unmarshal(lines.Bytes(), &entry))
		if entry.Msg == "proxy is serving" {
			p.url = "http://" + entry.Listen
			break
		}
	}
	if p.url == "" {
		w.t.Fatal("the proxy did not come to serve")
	}
	go func() {
		rest := ""
		for lines.Scan() {
			rest += lines.Text() + "\n"
		}
		p.log <- rest
	}()
	return p
}

// reply is an answer, or the error of having none.
type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

func (r reply) replayed() bool { return r.header.Get("Idempotent-Replayed") == "true" }

// post sends a payment of alice's, with fields: names and values.
func (p *instance) post(key, body string, fields ...string) reply {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, p.url+"/payments", strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	req.Header.Set("X-Client-Id", "alice")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	for i := 0; i+1 < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(content), err}
}

func (w *world) executions(want int64) {
	w.t.Helper()
	if got := w.n.Load(); got != want {
		w.t.Errorf("the app executed %d times, want %d", got, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("never happened: %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// gate is an app that tells when it is inside and leaves when it is let go.
type gate struct{ inside, leave chan struct{} }

func newGate() *gate { return &gate{make(chan struct{}, 10), make(chan struct{})} }

func (g *gate) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	g.inside <- struct{}{}
	<-g.leave
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, "done")
}

func TestTwoProxiesExecuteOnce(t *testing.T) {
	w := newWorld(t, nil)
	proxies := []*instance{w.proxy("a"), w.proxy("b")}
	const n = 20
	replies := make(chan reply, n)
	for i := range n {
		go func() { replies <- proxies[i%2].post("k", `{"amount":1}`) }()
	}
	originals := 0
	for range n {
		switch got := <-replies; {
		case got.status == 201 && !got.replayed():
			originals++
		case got.status != 201 && got.status != 409:
			t.Errorf("got %d %v %s", got.status, got.err, got.body)
		}
	}
	if originals != 1 {
		t.Errorf("%d originals", originals)
	}
	w.executions(1)
}

// TestAnswersRoundTrip: every byte of a body, and what no UTF-8 string can hold in a header, come back from the database.
func TestAnswersRoundTrip(t *testing.T) {
	var every [256]byte
	for i := range every {
		every[i] = byte(i)
	}
	status := http.StatusCreated
	w := newWorld(t, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		rw.Header().Set("Content-Disposition", "attachment; filename=\"caf\xe9\"")
		rw.Header()["Link"] = []string{"<a>; rel=x", "<b>; rel=y"}
		rw.WriteHeader(status)
		_, _ = rw.Write(every[:])
		_ = http.NewResponseController(rw).Flush()
		rw.Header().Set(http.TrailerPrefix+"Checksum", "1")
	})
	p := w.proxy("a")
	p.post("k", `{}`)
	got := p.post("k", `{}`)
	if !got.replayed() || got.body != string(every[:]) || got.header.Get("Content-Disposition") != "attachment; filename=\"caf\xe9\"" || len(got.header["Link"]) != 2 {
		t.Errorf("got %d %q %q", got.status, got.body, got.header)
	}
	if got := p.post("k", `[]`); got.status != 422 {
		t.Errorf("another body: %d", got.status)
	}
	status = 503
	p.post("k2", `{}`)
	status = 204
	if got := p.post("k2", `{}`); got.status != 204 || got.replayed() {
		t.Errorf("after a release: %d replayed %v", got.status, got.replayed())
	}
	if got := p.post("k2", `{}`); got.status != 204 || !got.replayed() {
		t.Errorf("no content: %d replayed %v", got.status, got.replayed())
	}
}

// TestKilledWhileTheAppWorks: 409 until the lease ends, which takes seconds, and then that the outcome is not known.
func TestKilledWhileTheAppWorks(t *testing.T) {
	g := newGate()
	w := newWorld(t, g.ServeHTTP)
	defer close(g.leave)
	first, second := w.proxy("a"), w.proxy("b")
	go first.post("k", `{}`)
	<-g.inside
	must(t, first.cmd.Process.Kill())
	got := second.post("k", `{}`)
	if got.status != 409 || got.header.Get("Retry-After") == "" {
		t.Errorf("got %d %s", got.status, got.body)
	}
	eventually(t, "the lease ends", func() bool { return strings.Contains(second.post("k", `{}`).body, "outcome-unknown") })
	w.executions(1)
}

// TestStoppedProxyChangesNothing: one that was taken over while it was stopped does not change the entry when it goes on.
func TestStoppedProxyChangesNothing(t *testing.T) {
	g := newGate()
	var calls atomic.Int64
	w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 1 {
			g.ServeHTTP(rw, r)
			return
		}
		rw.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(rw, "two")
	}, func(c *proxyconfig.Config) { c.Routes[0].OnUnknownOutcome = "Reexecute" })
	first := w.proxy("a")
	answered := make(chan reply, 1)
	go func() { answered <- first.post("k", `{}`) }()
	<-g.inside
	must(t, first.cmd.Process.Signal(syscall.SIGSTOP))
	second := w.proxy("b")
	eventually(t, "the second takes over", func() bool { return second.post("k", `{}`).status == 201 })
	close(g.leave)
	must(t, first.cmd.Process.Signal(syscall.SIGCONT))
	<-answered
	if got := second.post("k", `{}`); got.body != "two" || !got.replayed() {
		t.Errorf("the entry is %d %q", got.status, got.body)
	}
	w.executions(2)
}

// TestJournalSurvivesKill: the store fails after the effect, the process is killed, and the next one on the same spool records the answer.
func TestJournalSurvivesKill(t *testing.T) {
	g := newGate()
	w := newWorld(t, g.ServeHTTP)
	door := newDoor(t, w.dsn)
	must(t, os.WriteFile(filepath.Join(w.dir, "dsn"), []byte(door.dsn), 0o600))
	first := w.proxy("a")
	answered := make(chan reply, 1)
	go func() { answered <- first.post("k", `{}`) }()
	<-g.inside
	door.shut()
	close(g.leave)
	if got := <-answered; got.status != 201 || got.body != "done" {
		t.Fatalf("the client got %d %q %v instead of the true answer", got.status, got.body, got.err)
	}
	must(t, first.cmd.Process.Kill())
	_ = first.cmd.Wait()
	door.open()
	second := w.proxy("a")
	eventually(t, "the answer is recorded", func() bool { got := second.post("k", `{}`); return got.replayed() && got.body == "done" })
	w.executions(1)
}

// TestTerminate: a request in flight finishes, the process ends with 0, and its log holds neither keys nor connection strings.
func TestTerminate(t *testing.T) {
	g := newGate()
	w := newWorld(t, g.ServeHTTP)
	p := w.proxy("a", "--log-level", "debug")
	answered := make(chan reply, 1)
	go func() { answered <- p.post("secret-key", `{"secret":"body"}`) }()
	<-g.inside
	must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	eventually(t, "it is deaf", func() bool {
		conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	close(g.leave)
	if got := <-answered; got.status != 201 {
		t.Errorf("got %d %v", got.status, got.err)
	}
	log := <-p.log
	must(t, p.cmd.Wait())
	parsed, err := pgx.ParseConfig(w.dsn)
	must(t, err)
	for _, secret := range []string{"secret", parsed.Database, "postgres://"} {
		if strings.Contains(log, secret) {
			t.Errorf("%q is in the log:\n%s", secret, log)
		}
	}
	again := w.proxy("b").post("secret-key", `{"secret":"body"}`)
	if !again.replayed() {
		t.Errorf("not recorded: %d %s", again.status, again.body)
	}
	w.executions(1)
}

// TestPasswordRotation: the old password is revoked, the file changes, and the process goes on.
func TestPasswordRotation(t *testing.T) {
	w := newWorld(t, nil)
	door := newDoor(t, w.dsn)
	must(t, os.WriteFile(filepath.Join(w.dir, "dsn"), []byte(door.dsn), 0o600))
	p := w.proxy("a")
	if got := p.post("k1", `{}`); got.status != 201 {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	door.shut()
	if got := p.post("k2", `{}`); got.status != 503 || got.header.Get("Retry-After") == "" {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	must(t, os.WriteFile(filepath.Join(w.dir, "dsn"), []byte(w.dsn), 0o600))
	eventually(t, "the new connection string is in use", func() bool { return p.post("k2", `{}`).status == 201 })
	if got := p.post("k1", `{}`); !got.replayed() {
		t.Errorf("got %d %s", got.status, got.body)
	}
	w.executions(2)
}
