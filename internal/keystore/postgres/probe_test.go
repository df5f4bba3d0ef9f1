// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
)

type skewed time.Duration

func (s skewed) Now() time.Time { return time.Now().Add(time.Duration(s)) }

func TestProbe(t *testing.T) {
	ready := newDatabase(t)
	nobody := "plain " + ready.name()
	ready.exec(`CREATE ROLE "` + nobody + `" LOGIN PASSWORD 'secret'`)
	t.Cleanup(func() { pgtest.Exec(t, pgtest.Server(t), `DROP ROLE "`+nobody+`"`) })
	server := parseURL(t, ready.dsn).Host
	for _, row := range []struct {
		reason string
		dsn    func(*url.URL)
		schema string
		clock  postgres.Clock
		want   error
	}{
		{"healthy", func(*url.URL) {}, "", wall{}, nil},
		{"the clock is a little off", func(*url.URL) {}, "", skewed(-9 * time.Second), nil},
		{"the clock is behind", func(*url.URL) {}, "", skewed(-11 * time.Second), keystore.ErrClockSkew},
		{"the clock is ahead", func(*url.URL) {}, "", skewed(11 * time.Second), keystore.ErrClockSkew},
		{"nothing listens", func(u *url.URL) { u.Host = freeAddr(t) }, "", wall{}, keystore.ErrUnreachable},
		{"no such host", func(u *url.URL) { u.Host = "secret-host.invalid:5432" }, "", wall{}, keystore.ErrUnreachable},
		{"no such database", func(u *url.URL) { u.Path = "/secretdb" }, "", wall{}, keystore.ErrUnreachable},
		{"wrong password", func(u *url.URL) { u.User = url.UserPassword("postgres", "secretpw") }, "", wall{}, keystore.ErrAuthFailed},
		{"no such role", func(u *url.URL) { u.User = url.UserPassword("secretrole", "secretpw") }, "", wall{}, keystore.ErrAuthFailed},
		{"the server has no TLS", func(u *url.URL) { u.RawQuery = "sslmode=require" }, "", wall{}, keystore.ErrTLSFailed},
		{"no schema yet", func(*url.URL) {}, "elsewhere", wall{}, keystore.ErrSchemaOutdated},
		{"read-only", func(u *url.URL) { u.RawQuery += "&default_transaction_read_only=on" }, "", wall{}, keystore.ErrReadOnly},
		{"asynchronous commit", func(u *url.URL) { u.RawQuery += "&synchronous_commit=off" }, "", wall{}, keystore.ErrNotDurable},
		{"a role that owns nothing", func(u *url.URL) { u.User = url.UserPassword(nobody, "secret") }, "", wall{}, keystore.ErrPermissionDenied},
		{"a role that may not make the schema", func(u *url.URL) { u.User = url.UserPassword(nobody, "secret") }, "new", wall{}, keystore.ErrPermissionDenied},
		{"no server of the kind that is asked for", func(u *url.URL) { u.RawQuery += "&target_session_attrs=standby" }, "", wall{}, keystore.ErrUnreachable},
	} {
		admin, err := postgres.OpenAdmin(t.Context(), with(t, ready.dsn, row.dsn), row.schema)
		if err != nil {
			t.Errorf("%s: %v", row.reason, err)
			continue
		}
		health, err := admin.Probe(t.Context(), row.clock)
		admin.Close()
		if !errors.Is(err, row.want) {
			t.Errorf("%s: %v, want %v", row.reason, err, row.want)
		}
		if err == nil && (health.Version == "" || health.SchemaVersion != postgres.Latest() || health.Now.IsZero()) {
			t.Errorf("%s: %+v", row.reason, health)
		}
		silent(t, row.reason, err, server, "secret", ready.name(), nobody)
	}
}

// silent wants none of parts in the text of err.
func silent(t *testing.T, reason string, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err != nil && strings.Contains(err.Error(), part) {
			t.Errorf("%s: the error tells %q: %v", reason, part, err)
		}
	}
}

// TestProbeSeesVolatileServer: settings that only the whole server has.
func TestProbeSeesVolatileServer(t *testing.T) {
	d := newDatabase(t)
	for _, setting := range []string{"fsync", "full_page_writes"} {
		t.Run(setting, func(t *testing.T) {
			alterSystem(t, setting, "off")
			admin, err := postgres.OpenAdmin(t.Context(), d.dsn, "")
			d.must(err)
			defer admin.Close()
			if _, err := admin.Probe(t.Context(), wall{}); !errors.Is(err, keystore.ErrNotDurable) || !strings.Contains(err.Error(), setting) {
				t.Errorf("probe: %v", err)
			}
		})
	}
}

// TestInvalidDSN: refused at once, and nothing of it is told.
func TestInvalidDSN(t *testing.T) {
	for _, dsn := range []string{
		"postgres://secret:secret@secret:notaport/secret",
		"postgres://secret:se%zzcret@secret/secret",
		"host=secret port=secret",
		"host=secret sslmode=secret",
		"host=secret sslrootcert=/secret sslmode=verify-full",
		"secret",
		"user='secret",
		"postgres://secret@secret/secret?pool_max_conns=secret",
		"postgres://secret@secret/secret?connect_timeout=secret",
	} {
		_, userErr := postgres.UserOf(dsn)
		_, openErr := postgres.Open(t.Context(), postgres.Config{DSN: dsn, Keyspace: "k"})
		_, adminErr := postgres.OpenAdmin(t.Context(), dsn, "")
		for _, err := range []error{userErr, openErr, adminErr} {
			if !errors.Is(err, keystore.ErrDSNInvalid) {
				t.Errorf("%s: %v", dsn, err)
			}
			silent(t, dsn, err, "secret")
		}
	}
}

func TestUserOf(t *testing.T) {
	for _, dsn := range []string{"postgres://ann@host/db", "host=host user=ann dbname=db password='x y'", "postgres://h1,h2/db?user=ann&target_session_attrs=read-write"} {
		if got, err := postgres.UserOf(dsn); err != nil || got != "ann" {
			t.Errorf("%s: %q, %v", dsn, got, err)
		}
	}
}
