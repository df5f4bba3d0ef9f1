// SPDX-License-Identifier: Apache-2.0

package consumers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"syscall"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-dev/operator/internal/child"
	"github.com/idempotency-dev/operator/pkg/inbox"
)

// poison is a message whose effect always fails.
const poison = "poison"

var errPoison = errors.New("this message's effect always fails")

// point where a worker kills itself.
type point string

const (
	nowhere      point = ""
	beforeCommit point = "before commit"
	afterCommit  point = "after commit, before it acknowledges"
)

// worker is one process of the consumer.
type worker struct {
	Broker, URL, DSN string
	Level            pgx.TxIsoLevel
	// At is where the first message kills it.
	At point
	// Kill: one of so many messages kills it, at either point. 0: none.
	Kill int
	// Log: what each delivery was told goes into the table outcomes.
	Log bool
}

// work is the worker's program: it consumes until it is told to stop.
func work(ctx context.Context, config string) error {
	var w worker
	if err := json.Unmarshal([]byte(config), &w); err != nil {
		return err
	}
	settings, err := pgx.ParseConfig(w.DSN)
	if err != nil {
		return err
	}
	settings.RuntimeParams["synchronous_commit"] = "off" // consumers are killed here, not the server
	conn, err := pgx.ConnectConfig(ctx, settings)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	// What has begun is ended, whoever wants the worker to stop.
	handle := func(id string) error { return w.handle(context.WithoutCancel(ctx), conn, id) }
	return clients()[w.Broker](ctx, w.URL, handle)
}

// client consumes from a broker until ctx ends: acknowledges messages that handle takes, and gives back those that it fails to.
type client func(ctx context.Context, url string, handle func(id string) error) error

func clients() map[string]client {
	return map[string]client{"nats": consumeNATS, "rabbitmq": consumeRabbitMQ}
}

// handle takes a message, or fails with errPoison; any other trouble ends the worker.
func (w *worker) handle(ctx context.Context, conn *pgx.Conn, id string) error {
	at := w.At
	if w.Kill > 0 && rand.N(w.Kill) == 0 {
		at = []point{beforeCommit, afterCommit}[rand.N(2)]
	}
	first, err := w.transact(ctx, conn, id, at)
	for inbox.Retryable(err) {
		first, err = w.transact(ctx, conn, id, at)
	}
	if err == nil && at == afterCommit {
		die()
	}
	if err == nil && w.Log {
		_, err = conn.Exec(ctx, "INSERT INTO outcomes VALUES ($1)", first)
	}
	return err
}

func (w *worker) transact(ctx context.Context, conn *pgx.Conn, id string, at point) (first bool, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: w.Level}, func(tx pgx.Tx) error {
		first, err = inbox.Once(ctx, tx.QueryRow, billing, id, func() error {
			_, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1)", id)
			if err == nil && id == poison {
				err = errPoison
			}
			return err
		})
		if err == nil && at == beforeCommit {
			die()
		}
		return err
	})
	return first, err
}

// die is kill -9.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// process is a worker that runs.
type process struct {
	cmd    *exec.Cmd
	stderr *bytes.Buffer
	ended  <-chan struct{}
}

func (w *worker) start() (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(w)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(program), stderr: &bytes.Buffer{}}
	p.cmd.Env = append(os.Environ(), workerEnv+"="+string(config))
	p.cmd.Stderr, p.cmd.SysProcAttr = p.stderr, child.Attributes(syscall.SIGKILL)
	_, p.ended, err = child.Spawn(p.cmd)
	return p, err
}

// stop lets the worker end what it does, and waits for it.
func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	return p.wait()
}

// errKilled is how a worker ends that has killed itself.
var errKilled = errors.New("worker was killed")

func (p *process) wait() error {
	<-p.ended
	status, _ := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch status.Signal() {
	case syscall.SIGKILL:
		return errKilled
	case syscall.SIGTERM: // before it listened
		return nil
	}
	if !p.cmd.ProcessState.Success() {
		return fmt.Errorf("worker ended with %s: %s", p.cmd.ProcessState, p.stderr)
	}
	return nil
}

// keep runs workers, one after the other as they are killed, until ctx ends. killed is told of each.
func (w *worker) keep(ctx context.Context, killed func()) error {
	for {
		p, err := w.start()
		if err != nil {
			return err
		}
		select {
		case <-p.ended:
			err = p.wait()
		case <-ctx.Done():
			if err = p.stop(); errors.Is(err, errKilled) {
				err = nil
			}
			return err
		}
		if !errors.Is(err, errKilled) {
			return fmt.Errorf("worker ended by itself: %w", err)
		}
		killed()
	}
}
