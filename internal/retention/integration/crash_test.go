// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/retention"
)

const (
	victimDSN   = "RETENTION_VICTIM_DSN"
	victimSteps = "RETENTION_VICTIM_STATEMENTS"
	victimClock = "RETENTION_VICTIM_CLOCK"
)

// failpoint counts the statements that are sent, and calls stop after the n-th has been answered.
type failpoint struct {
	sent atomic.Int64
	n    int64
	stop func()
}

func (f *failpoint) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (f *failpoint) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {
	if f.sent.Add(1) == f.n {
		f.stop()
	}
}

func (f *failpoint) open(dsn string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.Tracer = f
	return pgxpool.NewWithConfig(context.Background(), config)
}

// victim is the process that a test kills: it maintains the keyspace, and says so and stands still after the given number of statements.
func victim(dsn string) int {
	n, err := strconv.Atoi(os.Getenv(victimSteps))
	if err != nil {
		return 1
	}
	f := &failpoint{n: int64(n), stop: func() {
		fmt.Println("stopped")
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test kills this process, or ends itself
		os.Exit(1)
	}}
	pool, err := f.open(dsn)
	if err != nil {
		return 1
	}
	by, err := time.ParseDuration(os.Getenv(victimClock))
	if err != nil {
		return 1
	}
	_, err = retention.Run(context.Background(), postgres.NewCatalogue(pool, schema, keyspace), retention.Settings{CreateAhead: 1}, shifted{by})
	if err != nil {
		return 1
	}
	fmt.Println("done")
	return 0
}

// resume maintains what a crash left, as the next leader would, once the server has noticed that the other one is gone.
func (d *database) resume() {
	d.t.Helper()
	eventually(d.t, "the next pass gets the lock", func() bool {
		_, err := retention.Run(context.Background(), d, retention.Settings{CreateAhead: 1}, d.clock)
		if err != nil && !errors.Is(err, retention.ErrLocked) {
			d.t.Fatalf("resume: %v", err)
		}
		return err == nil
	})
	d.wantBusyWeek()
}

// A pass that is cut off after any statement is resumed to the same catalogue.
func TestCutOff(t *testing.T) {
	next := busyWeek(t).copies()
	for n := int64(1); ; n++ {
		d := next()
		ctx, cancel := context.WithCancel(context.Background())
		f := &failpoint{n: n, stop: cancel}
		pool, err := f.open(d.dsn)
		if err != nil {
			t.Fatal(err)
		}
		_, err = retention.Run(ctx, postgres.NewCatalogue(pool, schema, keyspace), retention.Settings{CreateAhead: 1}, d.clock)
		pool.Close()
		cancel()
		if f.sent.Load() < n {
			if err != nil {
				t.Fatalf("an undisturbed pass: %v", err)
			}
			t.Logf("a pass is %d statements", n-1)
			d.wantBusyWeek()
			break
		}
		d.resume()
		d.pool.Close()
	}
}

// The same with a process that is ended by SIGKILL.
func TestKilled(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	next := busyWeek(t).copies()
	for n := 1; ; n++ {
		d := next()
		command := exec.Command(program)
		command.Env = append(os.Environ(), victimDSN+"="+d.dsn, victimSteps+"="+strconv.Itoa(n), victimClock+"="+d.clock.by.String())
		in, errIn := command.StdinPipe()
		out, errOut := command.StdoutPipe()
		if err := errors.Join(errIn, errOut, command.Start()); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatalf("statement %d: the process said nothing: %v", n, err)
		}
		_ = command.Process.Kill()
		_ = command.Wait()
		_ = in.Close()
		if strings.TrimSpace(line) == "done" {
			t.Logf("a pass is %d statements", n-1)
			d.wantBusyWeek()
			break
		}
		d.resume()
		d.pool.Close()
	}
}
