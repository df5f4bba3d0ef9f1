// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/idempotency-dev/operator/internal/debian"
	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/keystoretest"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
)

// TestThroughPgBouncer runs the suite through PgBouncer in transaction mode, with fewer sessions on the server than the stores have connections:
// consecutive transactions of a connection see different sessions.
func TestThroughPgBouncer(t *testing.T) {
	pooler := startPgBouncer(t)
	keystoretest.Run(t, func(t *testing.T) keystoretest.Harness {
		h := harness(t, nil)
		h.Addr = pooler
		return h
	})
}

// TestThroughPgBouncerWithRaisedIsolation: what the store says of its transactions passes the pooler, too.
func TestThroughPgBouncerWithRaisedIsolation(t *testing.T) {
	pooler := startPgBouncer(t)
	keystoretest.Run(t, func(t *testing.T) keystoretest.Harness {
		h := harness(t, func(d *database) {
			d.exec("ALTER DATABASE " + d.name() + " SET default_transaction_isolation = 'serializable'")
		})
		h.Addr = pooler
		return h
	}, "Life", "RaceMidnight", "RaceOwnership")
}

// TestFiveHundredSidecars: behind PgBouncer the server has as many sessions as the pooler gives it, however many sidecars there are. All of them
// reserve one key at once, and one key each.
func TestFiveHundredSidecars(t *testing.T) {
	const sidecars = 500
	d := newDatabase(t)
	d.partitions(keystoretest.Start(), 2)
	d.setClock(keystoretest.Start())
	dsn := at(t, d.sidecar(), startPgBouncer(t))
	outcomes := make([]keystore.Outcome, sidecars)
	errs := make([]error, sidecars)
	var group sync.WaitGroup
	for n := range sidecars {
		s := d.open(t, dsn)
		group.Go(func() {
			holder := keystore.NewHolder()
			reserve := func(key string) (keystore.Reservation, keystore.Outcome, error) {
				r := reservation(key)
				r.Holder = holder
				got, err := s.Reserve(context.WithoutCancel(t.Context()), r)
				return r, got.Outcome, err
			}
			own, outcome, err := reserve(fmt.Sprint("key ", n))
			if err == nil && outcome != keystore.New {
				err = fmt.Errorf("outcome %d of a key of its own", outcome)
			}
			errs[n] = errors.Join(err, s.Complete(context.WithoutCancel(t.Context()), ownership(own), keystore.Answer{Status: 201}))
			_, outcomes[n], err = reserve("one for all")
			errs[n] = errors.Join(errs[n], err)
		})
	}
	group.Wait()
	d.must(errors.Join(errs...))
	won := 0
	for _, outcome := range outcomes {
		if outcome == keystore.New {
			won++
		}
	}
	if won != 1 {
		t.Errorf("%d of %d own the one key", won, sidecars)
	}
	var sessions int
	d.must(d.conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename LIKE 'Sidecar %'").Scan(&sessions))
	if sessions == 0 || sessions > poolSize {
		t.Errorf("the server has %d sessions of sidecars, want 1 to %d", sessions, poolSize)
	}
}

// poolSize is how many sessions on the server PgBouncer makes for a role.
const poolSize = 3

// startPgBouncer starts one in front of the test's server and returns its address. It installs the Debian package where it is missing.
func startPgBouncer(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		if err := debian.Install(t.Context(), "pgbouncer"); err != nil {
			t.Fatal(err)
		}
		program, err = exec.LookPath("pgbouncer")
	}
	if err != nil {
		t.Fatalf("install pgbouncer: %v", err)
	}
	dir, err := os.MkdirTemp("", "pgbouncer-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	addr := freeAddr(t)
	host, port, _ := net.SplitHostPort(addr)
	server := parseURL(t, pgtest.Server(t))
	config := filepath.Join(dir, "pgbouncer.ini")
	for path, text := range map[string]string{
		config: fmt.Sprintf(`[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = %s
listen_port = %s
unix_socket_dir =
pool_mode = transaction
default_pool_size = %d
max_client_conn = 2500
auth_type = plain
auth_query = SELECT rolname, 'secret' FROM pg_roles WHERE rolname = $1
auth_user = %s
auth_file = %s
`, server.Hostname(), server.Port(), host, port, poolSize, server.User.Username(), filepath.Join(dir, "users")),
		filepath.Join(dir, "users"): fmt.Sprintf("%q %q\n", server.User.Username(), password(t, pgtest.Server(t))),
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, config)
	cmd.SysProcAttr = unprivileged(t)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		_ = log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("pgbouncer's log ends: %s", text[max(0, len(text)-2000):])
		}
	})
	await(t, "pgbouncer listens", func() bool {
		conn, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", addr)
		if err == nil {
			err = conn.Close()
		}
		return err == nil
	})
	return addr
}

func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
	return addr
}

func password(t testing.TB, dsn string) string {
	t.Helper()
	p, _ := parseURL(t, dsn).User.Password()
	return p
}

// unprivileged lets a program that refuses to be root run as nobody.
func unprivileged(t testing.TB) *syscall.SysProcAttr {
	t.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(nobody.Uid)
	gid, _ := strconv.Atoi(nobody.Gid)
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
}
