// SPDX-License-Identifier: Apache-2.0

package localpg_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-dev/operator/internal/localpg"
)

func start(t *testing.T, o localpg.Options) *localpg.Server {
	t.Helper()
	o.Version = os.Getenv("POSTGRES_VERSION")
	s, err := localpg.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

func query(t *testing.T, dsn, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var out string
	if err := conn.QueryRow(t.Context(), sql).Scan(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestServerIsDurableAndOnLoopback(t *testing.T) {
	s := start(t, localpg.Options{})
	if got := query(t, s.DSN("postgres"), "SELECT current_setting('fsync') || ' ' || host(inet_server_addr())"); got != "on 127.0.0.1" {
		t.Errorf("fsync and address = %q", got)
	}
	if want := os.Getenv("POSTGRES_VERSION"); want != "" {
		if got := query(t, s.DSN("postgres"), "SHOW server_version"); !strings.HasPrefix(got, want+".") {
			t.Errorf("version = %q, want %q", got, want)
		}
	}
}

func TestTemporaryFolderGoesWithTheServer(t *testing.T) {
	s := start(t, localpg.Options{})
	s.Stop()
	if _, err := os.Stat(s.Dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("folder after Stop: %v", err)
	}
}

func TestFolderIsUsedAgain(t *testing.T) {
	parent, err := os.MkdirTemp("", "localpg-test-") // t.TempDir is closed to the server's account
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(parent) })
	if err := os.Chmod(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(parent, "pg")
	first := start(t, localpg.Options{Dir: dir, Settings: map[string]string{"application_name": "it's"}})
	query(t, first.DSN("postgres"), "WITH x AS (SELECT 1) SELECT set_config('application_name', 'x', false)")
	if got := query(t, first.DSN("postgres"), "SHOW application_name"); got != "it's" {
		t.Errorf("setting = %q", got)
	}
	first.Kill()
	second := start(t, localpg.Options{Dir: dir})
	if first.DSN("x") == "" || query(t, second.DSN("postgres"), "SELECT 'up'") != "up" {
		t.Error("no answer after a restart on the same folder")
	}
}

func TestStartReportsWhatTheServerSays(t *testing.T) {
	_, err := localpg.Start(t.Context(), localpg.Options{Version: os.Getenv("POSTGRES_VERSION"), Settings: map[string]string{"no_such": "1"}})
	if err == nil || !strings.Contains(err.Error(), "no_such") {
		t.Errorf("error = %v, want the server's own words", err)
	}
}
