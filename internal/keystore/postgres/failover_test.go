// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/localpg"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
)

// TestFailover: the primary dies under load and its synchronous standby is promoted. What was acknowledged is there: no reservation is given twice
// and no answer is lost. Calls fail while there is no primary, and only as unavailable.
func TestFailover(t *testing.T) {
	primary, standby := pair(t)
	d := &database{TB: t, dsn: primary.DSN("postgres")}
	d.conn = connect(t, d.dsn)
	var err error
	d.admin, err = postgres.OpenAdmin(t.Context(), d.dsn, "")
	d.must(err)
	t.Cleanup(d.admin.Close)
	d.must(d.admin.Migrate(t.Context()))
	d.must(d.admin.EnsureKeyspace(t.Context(), keyspaceName, ""))
	d.partitions(time.Now().Add(-24*time.Hour), 4)
	dsn := with(t, d.dsn, func(u *url.URL) {
		u.Host = primary.Addr() + "," + standby.Addr()
		u.RawQuery += "&target_session_attrs=read-write"
	})
	load := newLoad(t, d.open(t, dsn))
	load.until(200)
	primary.Kill()
	pgtest.Exec(t, standby.DSN("postgres"), "SELECT pg_promote()")
	load.until(400)
	load.end()
	load.verify(d.open(t, dsn))
}

// pair starts a primary and a synchronous standby of it, made by copying the folder of the stopped primary.
func pair(t *testing.T) (primary, standby *localpg.Server) {
	t.Helper()
	dir, err := os.MkdirTemp("", "failover-test-") // t.TempDir is closed to the server's account
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	start := func(name string, settings map[string]string) *localpg.Server {
		s, err := localpg.Start(t.Context(), localpg.Options{Dir: filepath.Join(dir, name), Version: os.Getenv("POSTGRES_VERSION"), Settings: settings})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Stop)
		return s
	}
	start("a", nil).Stop()
	for _, args := range [][]string{
		{"cp", "-a", filepath.Join(dir, "a"), filepath.Join(dir, "b")},
		{"cp", "-a", filepath.Join(dir, "a", "password"), filepath.Join(dir, "b", "data", "standby.signal")},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("copy folder: %v: %s", err, out)
		}
	}
	primary = start("a", map[string]string{"synchronous_standby_names": "*"})
	u := parseURL(t, primary.DSN("postgres"))
	standby = start("b", map[string]string{
		"primary_conninfo": fmt.Sprintf("host=%s port=%s user=%s password=%s", u.Hostname(), u.Port(), u.User.Username(), password(t, u.String())),
	})
	return primary, standby
}

// load is several callers that reserve and complete keys of their own, and remember what was acknowledged.
type load struct {
	t         *testing.T
	store     keystore.Store
	stop      context.CancelFunc
	callers   sync.WaitGroup
	completed atomic.Int64

	mu       sync.Mutex
	reserved map[string]keystore.Reservation
	answered map[string]bool
}

func newLoad(t *testing.T, store keystore.Store) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{t: t, store: store, stop: cancel, reserved: map[string]keystore.Reservation{}, answered: map[string]bool{}}
	t.Cleanup(l.end)
	for caller := range 8 {
		l.callers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				l.request(fmt.Sprintf("%d/%d", caller, n))
			}
		})
	}
	return l
}

// request is one request; some are left open, as by a caller that dies.
func (l *load) request(key string) {
	ctx := context.Background()
	r := keystore.Reservation{Client: "c", Key: key, Token: keystore.NewToken(), Holder: keystore.Holder{1}, Lease: time.Hour, Window: time.Hour}
	d, err := l.store.Reserve(ctx, r)
	if err != nil {
		l.expected(err)
		return
	}
	if d.Outcome != keystore.New {
		l.t.Errorf("reserve %s: outcome %d of a new key", key, d.Outcome)
	}
	l.note(func() { l.reserved[key] = r })
	if strings.HasSuffix(key, "0") {
		return
	}
	if err := l.store.Complete(ctx, keystore.Ownership{Client: "c", Key: key, Token: r.Token}, keystore.Answer{Status: 201, Body: []byte(key)}); err != nil {
		l.expected(err)
		return
	}
	l.note(func() { l.answered[key] = true })
	l.completed.Add(1)
}

func (l *load) expected(err error) {
	if !errors.Is(err, keystore.ErrUnavailable) {
		l.t.Errorf("during the failover: %v", err)
	}
}

func (l *load) note(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

// until waits for the n-th completion.
func (l *load) until(n int64) {
	l.t.Helper()
	await(l.t, fmt.Sprintf("%d requests are completed", n), func() bool { return l.completed.Load() >= n })
}

func (l *load) end() {
	l.stop()
	l.callers.Wait()
}

// verify asks for every key again.
func (l *load) verify(store keystore.Store) {
	l.t.Helper()
	for key, r := range l.reserved {
		r.Token = keystore.NewToken()
		d, err := store.Reserve(context.Background(), r)
		switch {
		case err != nil:
			l.t.Errorf("reserve %s again: %v", key, err)
		case l.answered[key] && (d.Outcome != keystore.Completed || string(d.Answer.Body) != key):
			l.t.Errorf("%s was completed, and is: %d", key, d.Outcome)
		case d.Outcome == keystore.New || d.Outcome == keystore.TakenOver:
			l.t.Errorf("%s was reserved, and is given to another", key)
		}
	}
}

// TestServerClosesIdleConnections: a connection that the server has closed is no reason to fail (idle_session_timeout, SQLSTATE 57P05).
func TestServerClosesIdleConnections(t *testing.T) {
	d := newDatabase(t)
	d.partitions(time.Now(), 2)
	d.exec("ALTER DATABASE " + d.name() + " SET idle_session_timeout = '50ms'")
	s := d.open(t, d.sidecar())
	for n := range 3 {
		if got, err := s.Reserve(t.Context(), reservation(fmt.Sprint("key ", n))); err != nil || got.Outcome != keystore.New {
			t.Fatalf("reserve %d: outcome %d, %v, want New", n, got.Outcome, err)
		}
		await(t, "the server has closed the connection", func() bool {
			var sessions int
			d.must(d.conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename LIKE 'Sidecar %'").Scan(&sessions))
			return sessions == 0
		})
	}
}
