// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/localpg"
)

// The one-shot pass works without Kubernetes: it prints its plan as a table, does it unless it is dry, and finds nothing to do the second time.
func TestRetention(t *testing.T) {
	server, err := localpg.Start(t.Context(), localpg.Options{Version: os.Getenv("POSTGRES_VERSION")})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	dsn := server.DSN("postgres")
	admin, err := postgres.OpenAdmin(t.Context(), dsn, "")
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if err := admin.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := admin.EnsureKeyspace(t.Context(), "shop.payments", ""); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "dsn")
	if err := os.WriteFile(file, []byte(dsn+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	noEnv := func(string) string { return "" }
	for _, test := range []struct {
		name string
		more []string
		want string
	}{
		{"dry", []string{"--dry-run"}, `^ACTION +TABLE +FROM +TO +ROWS +BYTES +REASON\n(create +k_shop_payments_\w+ .*no partition holds this day\n){3}$`},
		{"still dry", []string{"--dry-run"}, `^ACTION.*\n(create .*\n){3}$`},
		{"wet", nil, `^ACTION.*\n(create .*\n){3}\n3 created, 0 dropped; 3 partitions, without a gap until \d{4}-\d\d-\d\dT00:00:00Z\n$`},
		{"again", nil, `^ACTION.*\n- .*nothing to do\n\n0 created, 0 dropped; 3 partitions, `},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			args := append([]string{"retention", "--dsn-file", file, "--keyspace", "shop.payments", "--create-ahead", "2"}, test.more...)
			if err := run(t.Context(), args, noEnv, &out); err != nil {
				t.Fatal(err)
			}
			if !regexp.MustCompile(test.want).MatchString(out.String()) {
				t.Errorf("output:\n%s\nwant %s", out.String(), test.want)
			}
		})
	}
	t.Run("no such keyspace", func(t *testing.T) {
		err := run(t.Context(), []string{"retention", "--dsn-file", file, "--keyspace", "shop.none"}, noEnv, &bytes.Buffer{})
		if err == nil || !strings.Contains(err.Error(), "not registered") || strings.Contains(err.Error(), "postgres") {
			t.Errorf("error: %v", err)
		}
	})
}

func TestRetentionRefusesBadArguments(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"--keyspace k", "set --dsn-file"},
		{"--dsn-file f", "set --keyspace"},
		{"--dsn-file f --keyspace k --create-ahead 0", "not between 1 and 60"},
		{"--dsn-file f --keyspace k --create-ahead 61", "not between 1 and 60"},
		{"--dsn-file f --keyspace k --timeout 0s", "not positive"},
		{"--dsn-file f --keyspace k extra", `unexpected argument "extra"`},
	} {
		if _, err := parseMaintenance(strings.Fields(test.args)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.args, err, test.want)
		}
	}
	if _, err := parseMaintenance(strings.Fields("--dsn-file f --keyspace k --create-ahead 60")); err != nil {
		t.Error(err)
	}
	file := filepath.Join(t.TempDir(), "dsn")
	if err := os.WriteFile(file, []byte("postgres://user:hunter2@host:port/db"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := run(context.Background(), []string{"retention", "--dsn-file", file, "--keyspace", "k"}, os.Getenv, &bytes.Buffer{})
	if err == nil || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "host") {
		t.Errorf("error: %v, want one without any part of the connection string", err)
	}
}
