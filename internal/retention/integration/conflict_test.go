// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
	"github.com/idempotency-dev/operator/internal/retention"
)

// transaction opens one that has run sql and stays open until end is called.
func (d *database) transaction(sql string) (end func()) {
	d.t.Helper()
	conn := pgtest.Connect(d.t, d.dsn)
	for _, s := range []string{"BEGIN", sql} {
		if _, err := conn.Exec(context.Background(), fill(s)); err != nil {
			d.t.Fatal(err)
		}
	}
	end = sync.OnceFunc(func() {
		_, _ = conn.Exec(context.Background(), "ROLLBACK") // the server has ended it when it answers
		_ = conn.Close(context.Background())
	})
	d.t.Cleanup(end)
	return end
}

// writers write as the key store does until stopped, each statement with a lock timeout a little over that of maintenance: the server itself
// says when one had to wait longer.
func (d *database) writers() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	for i := range 4 {
		conn := pgtest.Connect(d.t, d.dsn)
		group.Go(func() {
			defer func() { _ = conn.Close(context.Background()) }()
			if err := write(ctx, conn, d.clock.Now(), i); err != nil {
				d.t.Errorf("a write waited longer than maintenance may keep it: %v", err)
			}
		})
	}
	return func() { cancel(); group.Wait() }
}

func write(ctx context.Context, conn *pgx.Conn, today time.Time, writer int) error {
	if _, err := conn.Exec(context.Background(), "SET lock_timeout = '450ms'"); err != nil {
		return err
	}
	for n := 0; ctx.Err() == nil; n++ {
		key := fmt.Sprintf("writer %d.%d", writer, n)
		if _, err := conn.Exec(context.Background(), fill("SELECT count(*) FROM {{parent}} WHERE client = 'c' AND key = $1"), key); err != nil {
			return err
		}
		if _, err := conn.Exec(context.Background(), fill(insertion("{{parent}}")), key, today, reserved, today); err != nil {
			return err
		}
		if _, err := conn.Exec(context.Background(), fill("UPDATE {{parent}} SET state = 2 WHERE client = 'c' AND key = $1"), key); err != nil {
			return err
		}
	}
	return nil
}

// While a transaction that has read the parent stays open, partitions are made all the same, writes go on, and the old partition waits.
func TestLongReader(t *testing.T) {
	d, old := sealedDay(t, completed)
	d.at(day(3))
	end := d.transaction("SELECT count(*) FROM {{parent}}")
	stop := d.writers()
	report := d.maintain(retention.Settings{CreateAhead: 12, Attempts: 2})
	stop()
	if len(report.Created) != 5 {
		t.Errorf("created %v, want 5 days", report.Created)
	}
	if report.Ready() || report.Problems[0].Reason != retention.ReasonPendingDetach {
		t.Errorf("problems: %v, want PendingDetach", report.Problems)
	}
	end()
	if report := d.maintain(retention.Settings{CreateAhead: 12}); !report.Ready() {
		t.Errorf("after the reader has gone: %v", report.Problems)
	}
	if n := one[int](d, "SELECT count(*) FROM pg_class WHERE relname = $1", old); n != 0 {
		t.Error("the old partition is still there")
	}
}

// While somebody keeps the parent locked nothing can be made: the pass says so, and the next one does it.
func TestLockedParent(t *testing.T) {
	d, _ := sealedDay(t, completed)
	end := d.transaction("LOCK TABLE {{parent}} IN SHARE UPDATE EXCLUSIVE MODE") // as a VACUUM or another DDL would
	stop := d.writers()
	report := d.maintain(retention.Settings{CreateAhead: 10, Attempts: 3})
	stop()
	if len(report.Problems) != 2 || report.Problems[0].Reason != retention.ReasonRunwayShort || report.Problems[1].Reason != retention.ReasonLockTimeout {
		t.Errorf("problems: %v, want a short runway because of a lock timeout", report.Problems)
	}
	end()
	if report := d.maintain(retention.Settings{CreateAhead: 10}); !report.Ready() {
		t.Errorf("after the lock has gone: %v", report.Problems)
	}
}

// The backend that detaches is ended by force while it waits. What it left is finalized, by the pass or before it by somebody else.
func TestInterruptedDetach(t *testing.T) {
	d, old := sealedDay(t, completed)
	d.at(day(3))
	part := retention.Partition{Relation: old}
	if _, err := d.Do(context.Background(), retention.Step{Action: retention.Retire, Partition: part}); err != nil {
		t.Fatal(err)
	}
	end := d.transaction("SELECT count(*) FROM {{parent}}")
	conn := pgtest.Connect(t, d.dsn)
	defer func() { _ = conn.Close(context.Background()) }()
	detached := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), fill("ALTER TABLE {{parent}} DETACH PARTITION idempotency."+old+" CONCURRENTLY"))
		detached <- err
	}()
	eventually(t, "the detach waits", func() bool {
		return one[bool](d, "SELECT EXISTS (SELECT FROM pg_inherits WHERE inhdetachpending)")
	})
	d.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'ALTER TABLE%CONCURRENTLY'")
	if err := <-detached; err == nil {
		t.Fatal("the detach was not interrupted")
	}
	if report := d.maintain(retention.Settings{CreateAhead: 1, Attempts: 1}); report.Ready() || report.Problems[0].Reason != retention.ReasonPendingDetach {
		t.Errorf("while the reader is there: %v", report.Problems)
	}
	end()
	if report := d.maintain(retention.Settings{CreateAhead: 1}); !report.Ready() {
		t.Errorf("problems: %v", report.Problems)
	}
	if n := one[int](d, "SELECT count(*) FROM pg_class WHERE relname = $1", old); n != 0 {
		t.Error("the old partition is still there")
	}
}

// eventually polls until condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for tick := time.NewTicker(10 * time.Millisecond); !condition(); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// unlocked is a Catalogue whose lock does not lock: a split brain made on purpose.
type unlocked struct{ *postgres.Catalogue }

func (unlocked) Lock(context.Context) (func(), error) { return func() {}, nil }

// Several managers at once come to the catalogue that one would have made, whether the lock keeps them apart or not.
func TestManagersAtOnce(t *testing.T) {
	for _, test := range []struct {
		name string
		open func(*database) retention.Catalogue
	}{
		{"locked", func(d *database) retention.Catalogue { return use(t, d.dsn).Catalogue }},
		{"split brain", func(d *database) retention.Catalogue {
			return unlocked{use(t, d.dsn).Catalogue}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := busyWeek(t)
			var group sync.WaitGroup
			for range 4 {
				catalogue := test.open(d)
				group.Go(func() {
					_, err := retention.Run(context.Background(), catalogue, retention.Settings{CreateAhead: 1}, d.clock)
					if err != nil && !errors.Is(err, retention.ErrLocked) {
						t.Errorf("run: %v", err)
					}
				})
			}
			group.Wait()
			report := d.maintain(retention.Settings{CreateAhead: 1}) // what they left to each other
			if !report.Ready() {
				t.Errorf("problems: %v", report.Problems)
			}
			d.wantBusyWeek()
		})
	}
}

// busyWeek is a keyspace on day 6 that was not maintained since day 0 and has everything to do: partitions to make, to seal, to drop, to keep.
func busyWeek(t *testing.T) *database {
	t.Helper()
	d := newDatabase(t)
	d.at(day(0))
	d.maintain(retention.Settings{CreateAhead: 1})
	d.insert("gone", day(0), completed, day(2))
	d.insert("kept", day(1), completed, day(8))
	d.insert("unknown", day(0), reserved, day(4))
	d.at(day(6))
	return d
}

func (d *database) wantBusyWeek() {
	d.t.Helper()
	d.want(partitions(1, 1), partitions(6, 7))
	rows, err := d.pool.Query(context.Background(), "SELECT relation || ' ' || phase FROM idempotency.partitions ORDER BY 1")
	if err != nil {
		d.t.Fatal(err)
	}
	records, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		d.t.Fatal(err)
	}
	want := []string{partitions(1, 1)[0] + " sealed"}
	for _, name := range partitions(6, 7) {
		want = append(want, name+" open")
	}
	if diff := cmp.Diff(want, records); diff != "" {
		d.t.Errorf("records: -want +got\n%s", diff)
	}
}
