// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// TestLocalDemo is what `make try` runs, with its own PostgreSQL server.
func TestLocalDemo(t *testing.T) {
	got := execute(t, "", "local", "-f", samplePath, "--demo")
	if got.failure != nil {
		t.Fatalf("%v\n%s\n%s", got.failure, got.err, got.out)
	}
	if !strings.Contains(got.out, "Every promise held: 5 executions, none of them twice.") || strings.Contains(got.out, "NO: ") {
		t.Errorf("output:\n%s", got.out)
	}
	if !strings.Contains(got.err, "starting a private PostgreSQL server") || !strings.Contains(got.err, "8 daily partitions") {
		t.Errorf("progress:\n%s", got.err)
	}
}

// TestLocalDemoInAKeptDatabase runs twice in one database: what the first run left there must not answer for the second.
func TestLocalDemoInAKeptDatabase(t *testing.T) {
	dsn := writeFile(t, pgtest.NewDatabase(t))
	for range 2 {
		got := execute(t, "", "local", "-f", samplePath, "--demo", "--dsn-file", dsn)
		if got.failure != nil {
			t.Fatalf("%v\n%s\n%s", got.failure, got.err, got.out)
		}
		if strings.Contains(got.err, "private PostgreSQL") {
			t.Errorf("it started a server of its own:\n%s", got.err)
		}
	}
}

// TestLocalEncrypts: a policy that encrypts is not tried without keys, and keeps its promises with them.
func TestLocalEncrypts(t *testing.T) {
	sample, err := os.ReadFile(samplePath)
	if err != nil {
		t.Fatal(err)
	}
	policy := writeFile(t, strings.Replace(string(sample), "  store:\n", "  store:\n    encryptionKeySecretRef: {name: payments-keys}\n", 1))
	keys := writeFile(t, "one "+base64.StdEncoding.EncodeToString(make([]byte, 32))+"\n")
	for _, row := range []struct {
		reason, want string
		args         []string
	}{
		{"no keys", "--encryption-key-file is needed", nil},
		{"no such file", "no such file", []string{"--encryption-key-file", keys + ".gone"}},
		{"no key in it", "line 1", []string{"--encryption-key-file", writeFile(t, "one")}},
	} {
		got := execute(t, "", append([]string{"local", "-f", policy, "--demo"}, row.args...)...)
		if got.failure == nil || !strings.Contains(got.failure.Error(), row.want) {
			t.Errorf("%s: %v, want %q", row.reason, got.failure, row.want)
		}
	}
	got := execute(t, "", "local", "-f", policy, "--demo", "--dsn-file", writeFile(t, pgtest.NewDatabase(t)), "--encryption-key-file", keys)
	if got.failure != nil || !strings.Contains(got.out, "Every promise held") {
		t.Errorf("%v\n%s\n%s", got.failure, got.err, got.out)
	}
}

// TestLocalServes runs until it is told to end, in front of an app of the user's.
func TestLocalServes(t *testing.T) {
	executions := 0 // one request at a time
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		executions++
		w.WriteHeader(http.StatusAccepted)
	}))
	defer app.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	messages, writer := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		args := []string{"local", "-f", samplePath, "--upstream", app.URL, "--listen", "127.0.0.1:0", "--dsn", pgtest.NewDatabase(t)}
		ended <- run(ctx, args, os.Getenv, streams{in: strings.NewReader(""), out: io.Discard, err: writer})
		_ = writer.Close()
	}()
	url := ""
	lines := bufio.NewScanner(messages)
	for url == "" && lines.Scan() {
		if words := strings.Fields(lines.Text()); len(words) > 3 && words[0] == "serving" {
			url = words[3]
		}
	}
	go func() { _, _ = io.Copy(io.Discard, messages) }()
	if url == "" {
		t.Fatalf("it ended: %v", <-ended)
	}
	for i, replayed := range []string{"", "true"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/payments", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		request.Header = http.Header{"X-Client-Id": {"alice"}, "Idempotency-Key": {"k"}}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != http.StatusAccepted || response.Header.Get("Idempotent-Replayed") != replayed {
			t.Errorf("request %d: %d %v", i, response.StatusCode, response.Header)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
	if executions != 1 {
		t.Errorf("the app executed %d times, want once", executions)
	}
}

func TestLocalRefuses(t *testing.T) {
	shared := strings.NewReplacer("header: X-Client-Id", "shared: {}")
	sample, err := os.ReadFile(samplePath)
	if err != nil {
		t.Fatal(err)
	}
	unfit := writeFile(t, shared.Replace(string(sample)))
	redis := inRedis(t)
	dsn := pgtest.NewDatabase(t)
	tests := []struct {
		reason string
		args   []string
		says   string
	}{
		{"a policy with Redis", []string{"-f", redis, "--dsn", dsn}, "set spec.store.postgres"},
		{"a demo in front of somebody's app", []string{"-f", samplePath, "--demo", "--upstream", "http://127.0.0.1:1"}, "demo upstream"},
		{"two databases", []string{"-f", samplePath, "--dsn", "a", "--dsn-file", "b"}, "dsn dsn-file"},
		{"an upstream that is no URL", []string{"-f", samplePath, "--dsn", dsn, "--upstream", "127.0.0.1:3000"}, "is not a URL"},
		{"an upstream that is no HTTP", []string{"-f", samplePath, "--dsn", dsn, "--upstream", "ftp://127.0.0.1:3000"}, "is not a URL"},
		{"an upstream with a path", []string{"-f", samplePath, "--dsn", dsn, "--upstream", "http://127.0.0.1:3000/api"}, "is not a URL"},
		{"an address that is none", []string{"-f", samplePath, "--dsn", dsn, "--listen", "127.0.0.1:x"}, "listen for traffic"},
		{"a demo that cannot be", []string{"-f", unfit, "--dsn", dsn, "--demo"}, "the demo sends payments"},
		{"no database there", []string{"-f", samplePath, "--dsn", "postgres://hunter2:hunter2@127.0.0.1:1/hunter2"}, "unreachable"},
		{"no connection string", []string{"-f", samplePath, "--dsn", "postgres://hunter2:hunter2@[hunter2"}, "not valid"},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			got := execute(t, "", append([]string{"local"}, tt.args...)...)
			if !strings.Contains(got.message(), tt.says) {
				t.Errorf("error is %v, want one that says %q", got.failure, tt.says)
			}
			if strings.Contains(got.message()+got.err+got.out, "hunter2") {
				t.Errorf("it shows a part of the connection string: %v %s", got.failure, got.err)
			}
		})
	}
}

// TestLocalLeavesAnothersKeyspaceAlone meets a keyspace that a policy of some cluster derived and did not mean to share.
func TestLocalLeavesAnothersKeyspaceAlone(t *testing.T) {
	dsn := pgtest.NewDatabase(t)
	admin, err := postgres.OpenAdmin(t.Context(), dsn, "idempotency")
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if err := errors.Join(admin.Migrate(t.Context()), admin.EnsureKeyspace(t.Context(), "shop.payments", "another")); err != nil {
		t.Fatal(err)
	}
	got := execute(t, "", "local", "-f", samplePath, "-n", "shop", "--demo", "--dsn", dsn)
	if !errors.Is(got.failure, keystore.ErrKeyspaceTaken) {
		t.Errorf("error is %v, want one that says that the keyspace is taken", got.failure)
	}
}

func TestExample(t *testing.T) {
	tests := []struct {
		reason string
		client proxyconfig.Client
		says   string
	}{
		{"a header", proxyconfig.Client{Type: "Header", Header: "X-Client-Id"}, "-H 'X-Client-Id: alice'"},
		{"authorization", proxyconfig.Client{Type: "Authorization"}, "-H 'Authorization: Bearer alice'"},
		{"shared", proxyconfig.Client{Type: "Shared"}, "curl -i -X POST 'http://h:1/payments' -H 'Idempotency-Key: first-try'"},
	}
	for _, tt := range tests {
		config := sampleConfig(t, func(c *proxyconfig.Config) { c.Client = tt.client })
		if got := example(config, "http://h:1"); !strings.Contains(got, tt.says) {
			t.Errorf("%s: %s does not hold %s", tt.reason, got, tt.says)
		}
	}
}

// inRedis is a file with the sample policy, whose entries are in Redis.
func inRedis(t *testing.T) string {
	t.Helper()
	sample, err := os.ReadFile(samplePath)
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`(?m)^    postgres:\n(      .*\n)+`).ReplaceAllString(string(sample), "    redis: {dsnSecretRef: {name: payments-redis}}\n")
	if text == string(sample) {
		t.Fatal("the sample has another form")
	}
	return writeFile(t, text)
}
