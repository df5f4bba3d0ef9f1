// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
)

// TestRepeatedCallWaitsForTheStandby: a call whose commit did not wait for the synchronous standby to the end, because its session was ended, is
// repeated. The repetition finds everything done, and has to wait all the same, since a failover would undo it; as has the next.
func TestRepeatedCallWaitsForTheStandby(t *testing.T) {
	d := newDatabase(t)
	d.partitions(time.Now().Add(-24*time.Hour), 4)
	s := d.open(t, d.dsn)
	taken := reservation("taken over")
	first := taken
	first.Token = keystore.NewToken()
	known, lost := reservation("completed"), reservation("unknown")
	for _, r := range []keystore.Reservation{first, known, lost} {
		_, err := s.Reserve(t.Context(), r)
		d.must(err)
	}
	d.must(s.MarkUnknown(t.Context(), ownership(first)))
	taken.TakeOver = true
	_, err := s.Reserve(t.Context(), taken)
	d.must(err)
	fresh := reservation("reserved")
	calls := map[string]func(context.Context) error{
		"reserve": func(ctx context.Context) error { _, err := s.Reserve(ctx, fresh); return err },
		"complete": func(ctx context.Context) error {
			return s.Complete(ctx, ownership(known), keystore.Answer{Status: 201})
		},
		"mark unknown":           func(ctx context.Context) error { return s.MarkUnknown(ctx, ownership(lost)) },
		"release of a take-over": func(ctx context.Context) error { return s.Release(ctx, ownership(taken)) },
	}
	for call, run := range calls {
		t.Run(call, func(t *testing.T) {
			result := make(chan error, 1)
			waited := t.Run("while there is no standby", func(t *testing.T) {
				d.wantStandby(t)
				go func() { result <- run(context.Background()) }()
				for range 2 {
					pgtest.Exec(t, d.dsn, "SELECT pg_terminate_backend($1, 10000)", d.awaitWaiting(t, result))
				}
				d.awaitWaiting(t, result)
			})
			if !waited {
				return
			}
			if err := <-result; err != nil {
				t.Errorf("when no standby is wanted any more: %v", err)
			}
		})
	}
}

// wantStandby makes commits wait for a standby that does not exist, until the test's end.
func (d *database) wantStandby(t *testing.T) {
	t.Helper()
	alterSystem(t, "synchronous_standby_names", "nobody")
	// The setting is there; that commits wait is another process's doing, a little later.
	probe := pgtest.Connect(t, d.dsn)
	var writing sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	writing.Go(func() {
		defer func() { _ = probe.Close(context.Background()) }()
		for ctx.Err() == nil {
			_, _ = probe.Exec(ctx, "SELECT pg_logical_emit_message(true, '', '')")
		}
	})
	await(t, "a commit waits", func() bool { return d.waitingForStandby(t, "") != 0 })
	cancel()
	writing.Wait()
}

// awaitWaiting waits until a call of the store waits for the standby, and returns its session.
func (d *database) awaitWaiting(t *testing.T, result chan error) (pid uint32) {
	t.Helper()
	await(t, "a call waits for the standby", func() bool {
		pid = d.waitingForStandby(t, "idempotency")
		return pid != 0 || len(result) > 0
	})
	if pid == 0 {
		t.Fatal("the call has returned without waiting for the standby")
	}
	return pid
}

// waitingForStandby is a session of the application whose commit waits for a standby; 0: none.
func (d *database) waitingForStandby(t *testing.T, application string) (pid uint32) {
	t.Helper()
	err := d.conn.QueryRow(t.Context(), `SELECT coalesce(max(pid), 0) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = $1 AND wait_event = 'SyncRep'`, application).Scan(&pid)
	d.must(err)
	return pid
}

func reservation(key string) keystore.Reservation {
	return keystore.Reservation{Client: "c", Key: key, Token: keystore.NewToken(), Holder: keystore.Holder{1}, Lease: time.Hour, Window: time.Hour}
}

func ownership(r keystore.Reservation) keystore.Ownership {
	return keystore.Ownership{Client: r.Client, Key: r.Key, Token: r.Token}
}
