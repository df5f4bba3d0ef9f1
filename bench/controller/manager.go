// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

const (
	role = "sidecar"
	// password of a role on a server that lives as long as the run, on the loopback.
	password = "of-the-sidecar"
	// quietFor is how long nothing is written before nothing is expected to be.
	quietFor = 30 * time.Second
)

// errEnded: the program ended well, and was not told to.
var errEnded = errors.New("nobody told it to")

// manager is the program, running.
type manager struct {
	command *exec.Cmd
	log     *os.File
	metrics string // address
	ended   chan error
}

// sidecarDSN is that of the sidecar's role.
func (b *bench) sidecarDSN() string {
	u, err := url.Parse(b.postgres.DSN("postgres"))
	if err != nil {
		return ""
	}
	u.User = url.UserPassword(role, password)
	return u.String()
}

// prepareDatabase makes the sidecar's role, and counts DDL.
func (b *bench) prepareDatabase(ctx context.Context) error {
	return b.query(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `CREATE ROLE `+role+` LOGIN PASSWORD '`+password+`';
			CREATE TABLE ddl (tag text);
			CREATE FUNCTION note_ddl() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN INSERT INTO public.ddl VALUES (tg_tag); END $$;
			CREATE EVENT TRIGGER note_ddl ON ddl_command_end EXECUTE FUNCTION note_ddl()`)
		return err
	})
}

func (b *bench) query(ctx context.Context, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, b.postgres.DSN("postgres"))
	if err != nil {
		return errors.New("connect to the database")
	}
	defer func() { _ = conn.Close(ctx) }()
	return do(conn)
}

func (b *bench) program() string { return filepath.Join(b.dir, "manager") }

// build compiles the program as it is.
func (b *bench) build(ctx context.Context) error {
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", b.program(), "./cmd/manager").CombinedOutput(); err != nil { //nolint:gosec // the program is ours
		return fmt.Errorf("build manager: %w: %s", err, out)
	}
	return nil
}

// startManager starts the program, and returns how long it took until it had looked at every policy and every one was ready.
func (b *bench) startManager(ctx context.Context) (time.Duration, error) {
	log, err := os.OpenFile(filepath.Join(b.dir, "manager.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	ports, err := freePorts(ctx, 3)
	if err != nil {
		return 0, err
	}
	command := exec.CommandContext(ctx, b.program(), "--namespace=idempotency-system", "--sidecar-image="+image, "--metrics-bind-address=127.0.0.1:"+ports[0], //nolint:gosec // the program is ours
		"--health-probe-bind-address=127.0.0.1:"+ports[1], "--webhook-port="+ports[2], "--drain-delay=0s", "--log-level=warn")
	command.Env = append(os.Environ(), "KUBECONFIG="+b.kubeconfig, "GOMAXPROCS=2", "GOGC=50") // as in config/manager
	command.Stdout, command.Stderr = log, log
	begun := time.Now()
	if err := command.Start(); err != nil {
		return 0, fmt.Errorf("start manager: %w", err)
	}
	b.manager = &manager{command, log, "127.0.0.1:" + ports[0], make(chan error, 1)}
	go func(m *manager) { m.ended <- m.command.Wait() }(b.manager)
	ctx, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	return b.allReady(ctx, begun)
}

// allReady waits until the manager has looked at every policy, and found it ready. A policy that was ready before has to be looked at, too.
func (b *bench) allReady(ctx context.Context, begun time.Time) (time.Duration, error) {
	tick := time.NewTicker(3 * time.Second)
	defer tick.Stop()
	for {
		asked, err := b.looked(ctx)
		if err != nil {
			return 0, err
		}
		ready := 0
		if asked >= b.policies {
			if ready, err = b.countReady(ctx); err != nil {
				return 0, err
			}
		}
		if ready == b.policies {
			return time.Since(begun), nil
		}
		select {
		case <-tick.C:
		case err := <-b.manager.ended:
			text, _ := os.ReadFile(b.manager.log.Name())
			b.manager = nil
			return 0, fmt.Errorf("manager ended: %w: %.2000s", cmp.Or(err, errEnded), text)
		case <-ctx.Done():
			return 0, fmt.Errorf("%d policies were looked at and %d are ready: %w", asked, ready, ctx.Err())
		}
	}
}

// freePorts are ports that nobody listened on a moment ago.
func freePorts(ctx context.Context, n int) ([]string, error) {
	ports := make([]string, n)
	for i := range ports {
		var config net.ListenConfig
		listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer func() { _ = listener.Close() }()
		if _, ports[i], err = net.SplitHostPort(listener.Addr().String()); err != nil {
			return nil, err
		}
	}
	return ports, nil
}

// countReady counts the policies that are ready at their generation.
func (b *bench) countReady(ctx context.Context) (int, error) {
	list := &v1alpha1.IdempotencyPolicyList{}
	if err := b.client.List(ctx, list); err != nil {
		return 0, fmt.Errorf("list policies: %w", err)
	}
	ready := 0
	for i := range list.Items {
		if p := &list.Items[i]; meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionReady) && p.Status.ObservedGeneration == p.Generation {
			ready++
		}
	}
	return ready, nil
}

// stopManager ends the program as Kubernetes does.
func (b *bench) stopManager() error {
	m := b.manager
	b.manager = nil
	defer func() { _ = m.log.Close() }()
	if err := m.command.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("end manager: %w", err)
	}
	if err := <-m.ended; err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	return nil
}

// peakMemory is the most that the program has had resident, in MiB.
func (b *bench) peakMemory() (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.manager.command.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, "VmHWM:"); found {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kib / 1024, err
		}
	}
	return 0, errors.New("the system does not tell the memory of a process")
}

// writes counts what the operator wrote to the API server so far. Who asks whether a token is good writes nothing.
func (b *bench) writes() (int, error) {
	text, err := os.ReadFile(b.audit)
	if err != nil {
		return 0, err
	}
	return bytes.Count(text, []byte("\n")), nil
}

// settle waits until nothing is written any more.
func (b *bench) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	for before := -1; ; {
		now, err := b.writes()
		if err != nil {
			return err
		}
		if now == before {
			return nil
		}
		before = now
		if err := pause(ctx, quietFor); err != nil {
			return fmt.Errorf("wait until nothing is written: %w", err)
		}
	}
}

// idle counts API writes and DDL while nobody does anything.
func (b *bench) idle(ctx context.Context) (writes, statements int, err error) {
	count := func() (n int, err error) {
		err = b.query(ctx, func(conn *pgx.Conn) error { return conn.QueryRow(ctx, "SELECT count(*) FROM ddl").Scan(&n) })
		return n, err
	}
	before, err := b.writes()
	if err != nil {
		return 0, 0, err
	}
	ddl, err := count()
	if err != nil {
		return 0, 0, err
	}
	if err := pause(ctx, b.steady); err != nil {
		return 0, 0, err
	}
	if writes, err = b.writes(); err != nil {
		return 0, 0, err
	}
	if statements, err = count(); err != nil {
		return 0, 0, err
	}
	return writes - before, statements - ddl, nil
}

// edit changes policies one after another, and returns how long each took from the API server's answer to its ConfigMap being seen by a watch.
func (b *bench) edit(ctx context.Context) ([]time.Duration, error) {
	delays := make([]time.Duration, b.edits)
	for n := range delays {
		p := b.policy(rand.N(b.policies))
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"retention": map[string]any{"window": fmt.Sprintf("%dm", 2000+n)}}})
		if err != nil {
			return nil, err
		}
		asked := time.Now()
		if err := b.client.Patch(ctx, p, client.RawPatch(types.MergePatchType, patch)); err != nil {
			return nil, fmt.Errorf("edit policy %s: %w", p.Name, err)
		}
		waiting, cancel := context.WithTimeout(ctx, time.Minute)
		seen, err := b.sidecars.changed(waiting, types.NamespacedName{Namespace: p.Namespace, Name: "idempotency-" + p.Name}, asked)
		cancel()
		if err != nil {
			return nil, err
		}
		delays[n] = seen.Sub(asked)
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return nil, err
		}
	}
	return delays, nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
