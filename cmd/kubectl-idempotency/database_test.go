// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
	"github.com/idempotency-dev/operator/internal/proxy"
)

// fixture is the sample policy's keyspace in a fresh database, and a store as a sidecar has it.
type fixture struct {
	store  *postgres.Store
	holder keystore.Holder
	dsn    string
	// dsnFile holds dsn.
	dsnFile string
	// flags name policy and database, without a cluster.
	flags []string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureIn(t, "shop")
}

func newFixtureIn(t *testing.T, namespace string) *fixture {
	t.Helper()
	f := &fixture{dsn: pgtest.NewDatabase(t), holder: keystore.NewHolder()}
	p, err := (&policyFile{path: samplePath, namespace: namespace}).read(nil)
	if err != nil {
		t.Fatal(err)
	}
	k, err := newKeeper(t.Context(), f.dsn, p)
	if err != nil {
		t.Fatal(err)
	}
	defer k.close()
	if err := k.prepare(t.Context(), t.Logf); err != nil {
		t.Fatal(err)
	}
	f.store, err = postgres.Open(t.Context(), postgres.Config{DSN: f.dsn, Schema: p.Spec.Store.Postgres.Schema, Keyspace: k.keyspace})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.store.Close)
	f.dsnFile = writeFile(t, f.dsn+"\n")
	f.flags = []string{"-f", samplePath, "-n", namespace, "--dsn-file", f.dsnFile}
	return f
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// reserve asks for the key as a sidecar does.
func (f *fixture) reserve(t *testing.T, client, key string) (keystore.Ownership, keystore.Decision) {
	t.Helper()
	o := keystore.Ownership{Client: client, Key: key, Token: keystore.NewToken()}
	d, err := f.store.Reserve(t.Context(), keystore.Reservation{
		Client: client, Key: key, Token: o.Token, Holder: f.holder, Lease: time.Hour, Window: 24 * time.Hour, Route: "create-payment",
	})
	if err != nil {
		t.Fatal(err)
	}
	return o, d
}

// unknown makes an entry whose outcome is unknown.
func (f *fixture) unknown(t *testing.T, client, key string) {
	t.Helper()
	o, d := f.reserve(t, client, key)
	if d.Outcome != keystore.New {
		t.Fatalf("reserve gave %d", d.Outcome)
	}
	if err := f.store.MarkUnknown(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) execute(t *testing.T, args ...string) result {
	t.Helper()
	return execute(t, "", append(args, f.flags...)...)
}

func TestUnknown(t *testing.T) {
	f := newFixture(t)
	if got := f.execute(t, "unknown"); got.failure != nil || got.out != "" || !strings.Contains(got.err, "No outcome is unknown.") {
		t.Fatalf("none: %+v", got)
	}
	f.unknown(t, "alice", "k1")
	f.unknown(t, "bob", "k2")
	f.reserve(t, "alice", "in-flight")
	got := f.execute(t, "unknown")
	if got.failure != nil {
		t.Fatal(got.failure)
	}
	lines := strings.Split(strings.TrimSpace(got.out), "\n")
	if len(lines) != 3 {
		t.Fatalf("want a heading and two entries:\n%s", got.out)
	}
	for i, want := range [][]string{{"CLIENT", "KEY", "ROUTE"}, {"alice", "k1", "create-payment"}, {"bob", "k2", "create-payment"}} {
		if diff := cmp.Diff(want, strings.Fields(lines[i])[:3]); diff != "" {
			t.Errorf("line %d (-want +got):\n%s", i, diff)
		}
	}
	if got := f.execute(t, "unknown", "--limit", "1"); strings.Count(got.out, "\n") != 2 || !strings.Contains(got.err, "first 1") {
		t.Errorf("--limit 1: %+v", got)
	}
	if got := f.execute(t, "unknown", "--limit", "0"); got.failure == nil {
		t.Error("--limit 0: no error")
	}
}

func TestInspect(t *testing.T) {
	f := newFixture(t)
	o, _ := f.reserve(t, "alice", "done")
	answer := keystore.Answer{Status: 201, Header: http.Header{"Location": {"/payments/1"}, "Link": {"<a>", "<b>"}}, Body: []byte("{\"id\":1}\x00")}
	if err := f.store.Complete(t.Context(), o, answer); err != nil {
		t.Fatal(err)
	}
	o, _ = f.reserve(t, "alice", "large")
	if err := f.store.Complete(t.Context(), o, keystore.Answer{Status: 200, Tombstone: keystore.TooLarge}); err != nil {
		t.Fatal(err)
	}
	o, _ = f.reserve(t, "alice", "encrypted")
	if err := f.store.Complete(t.Context(), o, keystore.Answer{Status: 200, Tombstone: keystore.Sealed, Header: http.Header{"Idempotency-Sealed": {"2026-11"}}, Body: []byte{1}}); err != nil {
		t.Fatal(err)
	}
	f.reserve(t, "alice", "in-flight")
	f.unknown(t, "alice", "lost")
	tests := []struct {
		reason, key string
		says        []string
	}{
		{"completed", "done", []string{"Keyspace: shop.payments", "Client: alice", "Key: done", "State: Completed: retries get", "Route: create-payment",
			"Attempts: 1", "Status: 201", "Header: Link: <a>", "Header: Link: <b>", "Header: Location: /payments/1", "Body: 9 bytes"}},
		{"a tombstone", "large", []string{"State: Completed: it took effect, and its answer was not kept (TooLarge)", "Status: 200"}},
		{"encrypted", "encrypted", []string{"State: Completed: retries get the recorded answer, which is encrypted", "Header: Idempotency-Sealed: 2026-11"}},
		{"in flight", "in-flight", []string{"State: Reserved: a live sidecar"}},
		{"unknown", "lost", []string{"State: Unknown: it may or may not"}},
	}
	for _, tt := range tests {
		got := f.execute(t, "inspect", tt.key, "--client", "alice")
		out := squeeze(got.out)
		for _, says := range tt.says {
			if !strings.Contains(out, says) {
				t.Errorf("%s: output does not say %q: %v\n%s", tt.reason, says, got.failure, got.out)
			}
		}
	}
	if got := f.execute(t, "inspect", "done", "--client", "alice", "--body"); got.out != string(answer.Body) {
		t.Errorf("--body wrote %q, want %q: %v", got.out, answer.Body, got.failure)
	}
	for _, key := range []string{"large", "lost"} {
		if got := f.execute(t, "inspect", key, "--client", "alice", "--body"); !strings.Contains(got.message(), "no body can be shown") {
			t.Errorf("--body of %s: %v", key, got.failure)
		}
	}
	if got := f.execute(t, "inspect", "done", "--client", "bob"); !strings.Contains(got.message(), `client "bob" has no entry "done"`) {
		t.Errorf("another client's key: %+v", got)
	}
	if got := f.execute(t, "inspect", "done"); !strings.Contains(got.message(), "--client is needed") {
		t.Errorf("no client: %+v", got)
	}
}

// squeeze makes every run of spaces one space.
func squeeze(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	return strings.Join(lines, "\n")
}

func TestSettleWithAnswer(t *testing.T) {
	f := newFixture(t)
	f.unknown(t, "alice", "k")
	body := writeFile(t, `{"id":17}`)
	got := f.execute(t, "settle", "k", "-c", "alice", "--status", "201", "--header", "location: /payments/17", "--header", "Link: <a>", "--header", "Link: <b>", "--body-file", body)
	if got.failure != nil || !strings.Contains(got.err, "retries get 201 Created") {
		t.Fatalf("settle: %+v", got)
	}
	_, d := f.reserve(t, "alice", "k")
	want := &keystore.Answer{Status: 201, Header: http.Header{"Location": {"/payments/17"}, "Link": {"<a>", "<b>"}}, Body: []byte(`{"id":17}`)}
	if d.Outcome != keystore.Completed {
		t.Fatalf("a retry meets %d, want Completed", d.Outcome)
	}
	if diff := cmp.Diff(want, d.Answer); diff != "" {
		t.Errorf("a retry's answer (-want +got):\n%s", diff)
	}
}

func TestSettleWithRelease(t *testing.T) {
	f := newFixture(t)
	f.unknown(t, "alice", "k")
	if got := f.execute(t, "settle", "k", "-c", "alice", "--release"); got.failure != nil || !strings.Contains(got.err, "the next retry executes") {
		t.Fatalf("settle: %+v", got)
	}
	if _, d := f.reserve(t, "alice", "k"); d.Outcome != keystore.New {
		t.Errorf("a retry meets %d, want New", d.Outcome)
	}
}

// TestSettleRefuses tries what must change nothing.
func TestSettleRefuses(t *testing.T) {
	f := newFixture(t)
	f.reserve(t, "alice", "in-flight")
	f.unknown(t, "alice", "lost")
	o, _ := f.reserve(t, "alice", "done")
	if err := f.store.Complete(t.Context(), o, keystore.Answer{Status: 200, Header: http.Header{}}); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		reason string
		args   []string
		says   string
	}{
		{"a live sidecar is executing it", []string{"in-flight", "-c", "alice", "--release"}, "only an unknown outcome"},
		{"an answer is recorded", []string{"done", "-c", "alice", "--release"}, "only an unknown outcome"},
		{"there is none", []string{"never", "-c", "alice", "--release"}, "no entry"},
		{"no verdict", []string{"lost", "-c", "alice"}, "release"},
		{"two verdicts", []string{"lost", "-c", "alice", "--release", "--status", "201"}, "release"},
		{"a release with an answer", []string{"lost", "-c", "alice", "--release", "--header", "A: b"}, "release"},
		{"an interim status", []string{"lost", "-c", "alice", "--status", "199"}, "final status"},
		{"beyond the last status", []string{"lost", "-c", "alice", "--status", "600"}, "final status"},
		{"a header without a colon", []string{"lost", "-c", "alice", "--status", "200", "--header", "Location"}, "'Name: value'"},
		{"a header with a line break", []string{"lost", "-c", "alice", "--status", "200", "--header", "A: b\r\nC: d"}, "'Name: value'"},
		{"a length that would not be true", []string{"lost", "-c", "alice", "--status", "200", "--header", "content-length: 5"}, "its own"},
		{"a session", []string{"lost", "-c", "alice", "--status", "200", "--header", "Set-Cookie: a=b"}, "session"},
		{"a body where there is none", []string{"lost", "-c", "alice", "--status", "204", "--body-file", samplePath}, "no body"},
		{"a body that is not there", []string{"lost", "-c", "alice", "--status", "200", "--body-file", "/no/such/file"}, "/no/such/file"},
	}
	for _, tt := range tests {
		if got := f.execute(t, append([]string{"settle"}, tt.args...)...); !strings.Contains(got.message(), tt.says) {
			t.Errorf("%s: error is %v, want one that says %q", tt.reason, got.failure, tt.says)
		}
	}
	for key, want := range map[string]keystore.Outcome{"in-flight": keystore.InFlight, "lost": keystore.Unknown, "done": keystore.Completed, "never": keystore.New} {
		if _, d := f.reserve(t, "alice", key); d.Outcome != want {
			t.Errorf("a retry of %s meets %d, want %d", key, d.Outcome, want)
		}
	}
}

// TestSettleOfChangedEntry settles an entry that was taken over since it was read.
func TestSettleOfChangedEntry(t *testing.T) {
	f := newFixture(t)
	f.unknown(t, "alice", "k")
	db, err := (&target{path: samplePath, dsnFile: f.dsnFile, cluster: clusterIn("shop")}).open(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.admin.Close()
	entry, err := db.entry(t.Context(), "alice", "k")
	if err != nil {
		t.Fatal(err)
	}
	if d, err := f.store.Reserve(t.Context(), keystore.Reservation{
		Client: "alice", Key: "k", Token: keystore.NewToken(), Holder: f.holder, Lease: time.Hour, Window: time.Hour, TakeOver: true,
	}); err != nil || d.Outcome != keystore.TakenOver {
		t.Fatalf("take over: %d %v", d.Outcome, err)
	}
	if err := db.settle(t.Context(), entry, nil); err == nil || !strings.Contains(err.Error(), "has changed") {
		t.Errorf("error is %v, want one that says that the entry has changed", err)
	}
	if _, d := f.reserve(t, "alice", "k"); d.Outcome != keystore.InFlight {
		t.Errorf("a retry meets %d, want InFlight: the settlement must change nothing", d.Outcome)
	}
}

func clusterIn(namespace string) cluster {
	var c cluster
	c.overrides.Context.Namespace = namespace
	return c
}

func TestSharedClient(t *testing.T) {
	f := newFixture(t)
	sample, err := os.ReadFile(samplePath)
	if err != nil {
		t.Fatal(err)
	}
	f.flags[1] = writeFile(t, strings.Replace(string(sample), "header: X-Client-Id", "shared: {}", 1))
	f.unknown(t, proxy.SharedClient, "k")
	if got := f.execute(t, "inspect", "k"); !strings.Contains(got.out, "Unknown") {
		t.Errorf("inspect without --client: %+v", got)
	}
}

func TestPlan(t *testing.T) {
	f := newFixture(t)
	if got := f.execute(t, "plan"); got.failure != nil || got.out != "" || !strings.Contains(got.err, "Nothing to do: 8 partitions.") {
		t.Fatalf("nothing to do: %+v", got)
	}
	sample, err := os.ReadFile(samplePath)
	if err != nil {
		t.Fatal(err)
	}
	f.flags[1] = writeFile(t, strings.Replace(string(sample), "window: 24h", "window: 24h\n    createAhead: 9", 1))
	got := f.execute(t, "plan")
	if got.failure != nil || strings.Count(got.out, "create ") != 2 {
		t.Fatalf("two days are missing: %+v", got)
	}
	if again := f.execute(t, "plan"); again.out != got.out {
		t.Errorf("it changed something: first\n%sthen\n%s", got.out, again.out)
	}
}

// TestClusterNamesTheDatabase reads policy and Secret from the API server.
func TestClusterNamesTheDatabase(t *testing.T) {
	namespace := newNamespace(t)
	f := newFixtureIn(t, namespace)
	f.unknown(t, "alice", "k")
	createPolicy(t, namespace, "payments", "app: payments")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "payments-db"}}
	from := []string{"unknown", "--policy", "payments", "-n", namespace, "--kubeconfig"}
	if got := execute(t, "", append(from, server.admin)...); !strings.Contains(got.message(), "get secret "+namespace+"/payments-db") {
		t.Errorf("no Secret: %+v", got)
	}
	secret.Data = map[string][]byte{"admin-dsn": []byte(f.dsn + "\n"), "dsn": []byte("postgres://sidecar:hunter2@127.0.0.1:1/none")}
	if err := server.client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if got := execute(t, "", append(from, server.admin)...); !strings.Contains(got.out, "alice") {
		t.Errorf("from the cluster: %+v", got)
	}
	if got := execute(t, "", append(from, server.reader)...); !strings.Contains(got.message(), "get secret") || !strings.Contains(got.message(), "forbidden") {
		t.Errorf("as a user who may not read the Secret: %+v", got)
	}
	if got := execute(t, "", append(from, server.reader, "--dsn-file", f.dsnFile)...); !strings.Contains(got.out, "alice") {
		t.Errorf("as that user with another DSN: %+v", got)
	}
	for _, tt := range []struct {
		reason string
		data   map[string][]byte
		says   string
	}{
		{"no such key", map[string][]byte{"dsn": []byte(f.dsn)}, "secret " + namespace + "/payments-db has no key admin-dsn"},
		{"no connection string", map[string][]byte{"admin-dsn": []byte("postgres://hunter2:hunter2@[hunter2")}, "not valid"},
		{"nobody there", map[string][]byte{"admin-dsn": []byte("postgres://hunter2:hunter2@127.0.0.1:1/hunter2")}, "unreachable"},
	} {
		secret.Data = tt.data
		if err := server.client.Update(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		got := execute(t, "", append(from, server.admin)...)
		if !strings.Contains(got.message(), tt.says) {
			t.Errorf("%s: error is %v, want one that says %q", tt.reason, got.failure, tt.says)
		}
		if text := got.out + got.err + got.message(); strings.Contains(text, "hunter2") {
			t.Errorf("%s: it shows a part of the connection string: %s", tt.reason, text)
		}
	}
}

func TestTargetRefuses(t *testing.T) {
	tests := []struct {
		reason string
		args   []string
		says   string
	}{
		{"neither policy nor file", []string{"unknown"}, "policy filename"},
		{"both", []string{"unknown", "-p", "payments", "-f", samplePath}, "policy filename"},
		{"a file has no Secret", []string{"unknown", "-f", samplePath}, "--dsn-file is needed"},
		{"no such DSN file", []string{"unknown", "-f", samplePath, "--dsn-file", "/no/such/file"}, "/no/such/file"},
		{"a policy with Redis", []string{"unknown", "-f", inRedis(t), "--dsn-file", writeFile(t, "redis://127.0.0.1:1")}, "keeps its entries in Redis"},
		{"an empty DSN file", []string{"unknown", "-f", samplePath, "--dsn-file", os.DevNull}, "is empty"},
	}
	for _, tt := range tests {
		if got := execute(t, "", tt.args...); !strings.Contains(got.message(), tt.says) {
			t.Errorf("%s: error is %v, want one that says %q", tt.reason, got.failure, tt.says)
		}
	}
}
