// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idempotency-dev/operator/internal/retention"
)

// sealedDay is a keyspace on day 1 whose day 0 is sealed with one entry, honoured until the noon of day 2.
func sealedDay(t *testing.T, state int) (*database, string) {
	t.Helper()
	d := newDatabase(t)
	d.at(day(0))
	d.maintain(retention.Settings{CreateAhead: 9})
	d.insert("k", day(0), state, day(2))
	d.at(day(1))
	d.maintain(retention.Settings{CreateAhead: 9})
	return d, partitions(0, 0)[0]
}

func (d *database) phase(relation string) string {
	d.t.Helper()
	return one[string](d, "SELECT phase FROM idempotency.partitions WHERE relation = $1", relation)
}

// A completion that comes late starts the window anew: the count is void, and made anew.
func TestLateCompletion(t *testing.T) {
	d, old := sealedDay(t, reserved)
	d.exec("UPDATE {{parent}} SET state = 2, expires_at = $1 WHERE key = 'k'", day(4))
	if got := d.phase(old); got != "open" {
		t.Errorf("after a write the partition is %s, want open", got)
	}
	d.at(day(3))
	d.maintain(retention.Settings{CreateAhead: 1})
	d.at(day(4).Add(-time.Second))
	d.maintain(retention.Settings{CreateAhead: 1})
	if n := one[int](d, "SELECT count(*) FROM {{parent}} WHERE key = 'k'"); n != 1 {
		t.Fatal("the entry is gone before its window was over")
	}
	d.at(day(4).Add(time.Second))
	d.maintain(retention.Settings{CreateAhead: 1})
	if n := one[int](d, "SELECT count(*) FROM pg_class WHERE relname = $1", old); n != 0 {
		t.Error("the partition is still there")
	}
}

// A completion that has not committed yet, when everything else says that the partition can go.
func TestUncommittedCompletion(t *testing.T) {
	d, old := sealedDay(t, reserved)
	tx, err := d.pool.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(context.Background(), fill("UPDATE {{parent}} SET state = 2, expires_at = $1 WHERE key = 'k'"), day(9)); err != nil {
		t.Fatal(err)
	}
	d.at(day(3))
	report := d.maintain(retention.Settings{CreateAhead: 1, Attempts: 1})
	if report.Ready() || report.Problems[0].Reason != retention.ReasonLockTimeout || report.Problems[0].Relation != old {
		t.Errorf("problems: %v, want a lock timeout for %s", report.Problems, old)
	}
	if err := tx.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	d.maintain(retention.Settings{CreateAhead: 1})
	if until := one[time.Time](d, "SELECT honoured_until FROM idempotency.partitions WHERE relation = $1", old); !until.Equal(day(9)) {
		t.Errorf("honoured until %v, want %v", until, day(9))
	}
}

// A reservation whose holder lives is honoured beyond its window; one whose holder is dead goes with the partition, and is counted.
func TestReservationBeyondItsWindow(t *testing.T) {
	d, old := sealedDay(t, reserved)
	d.exec("INSERT INTO idempotency.holders VALUES ('"+holder+"', $1)", day(3).Add(time.Minute))
	d.at(day(3))
	report := d.maintain(retention.Settings{CreateAhead: 1})
	if n := one[int](d, "SELECT count(*) FROM {{parent}} WHERE key = 'k'"); n != 1 {
		t.Fatal("a live holder has lost its reservation")
	}
	if report.Unsettled != 1 || report.Overdue != 1 || report.Ready() {
		t.Errorf("report: unsettled %d, overdue %d, problems %v", report.Unsettled, report.Overdue, report.Problems)
	}
	if got := d.phase(old); got != "sealed" {
		t.Errorf("the partition is %s, want sealed", got)
	}
	d.at(day(3).Add(time.Hour))
	report = d.maintain(retention.Settings{CreateAhead: 1})
	if report.Abandoned != 1 || len(report.Dropped) == 0 || !report.Ready() {
		t.Errorf("report: abandoned %d, dropped %v, problems %v", report.Abandoned, report.Dropped, report.Problems)
	}
}

// The holder renews its lease while the partition is being retired: one of the two is first, never both.
func TestLeaseRenewedWhileRetiring(t *testing.T) {
	d, old := sealedDay(t, reserved)
	d.at(day(3))
	tx, err := d.pool.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(context.Background(), "INSERT INTO idempotency.holders VALUES ('"+holder+"', $1)", day(4)); err != nil {
		t.Fatal(err)
	}
	step := retention.Step{Action: retention.Retire, Partition: retention.Partition{Relation: old, Unsettled: 1}}
	if _, err := d.Do(context.Background(), step); !errors.Is(err, retention.ErrLockTimeout) {
		t.Errorf("retire while a lease is being renewed: %v, want a lock timeout", err)
	}
	if err := tx.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Do(context.Background(), step); !errors.Is(err, retention.ErrChanged) {
		t.Errorf("retire after the lease was renewed: %v, want ErrChanged", err)
	}
	if n := one[int](d, "SELECT count(*) FROM {{parent}} WHERE key = 'k'"); n != 1 {
		t.Error("a live holder has lost its reservation")
	}
}

// Once retired, a partition takes no write, so that nothing can become honoured behind the check; and when the clock goes back, it does again.
func TestRetiring(t *testing.T) {
	d, old := sealedDay(t, completed)
	d.at(day(3))
	step := retention.Step{Action: retention.Retire, Partition: retention.Partition{Relation: old}}
	if _, err := d.Do(context.Background(), step); err != nil {
		t.Fatal(err)
	}
	insert := func(table string) error {
		_, err := d.pool.Exec(context.Background(), fill(insertion(table)), "late", day(0), reserved, day(9))
		return err
	}
	_, update := d.pool.Exec(context.Background(), fill("UPDATE {{parent}} SET expires_at = expires_at + interval '1 day'"))
	for name, err := range map[string]error{"insert": insert("{{parent}}"), "insert by name": insert("idempotency." + old), "update": update} {
		if pg := new(pgconn.PgError); !errors.As(err, &pg) || pg.Code != "55000" {
			t.Errorf("%s: %v, want it refused as object_not_in_prerequisite_state", name, err)
		}
	}
	d.at(day(0))
	if report := d.maintain(retention.Settings{CreateAhead: 1}); !report.Ready() {
		t.Errorf("problems: %v", report.Problems)
	}
	d.insert("again", day(0), reserved, day(8))
	d.at(day(5))
	d.maintain(retention.Settings{CreateAhead: 1})
	if n := one[int](d, "SELECT count(*) FROM {{parent}}"); n != 2 {
		t.Errorf("%d entries, want both: one of them is honoured", n)
	}
}
