// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/retention"
)

// partitions names the partitions of days from to to.
func partitions(from, to int) []string {
	var all []string
	for n := from; n <= to; n++ {
		all = append(all, retention.Name(parent, day(n)))
	}
	return all
}

func (d *database) want(tables ...[]string) {
	d.t.Helper()
	if diff := cmp.Diff(slices.Concat(tables...), d.tables(), cmpopts.EquateEmpty()); diff != "" {
		d.t.Errorf("tables: -want +got\n%s", diff)
	}
}

// A partition's life, day by day, with entries that outlive their day by far: a window that was shortened meanwhile breaks no promise.
func TestLife(t *testing.T) {
	d := newDatabase(t)
	d.at(day(0))
	report := d.maintain(retention.Settings{CreateAhead: 2})
	d.want(partitions(0, 2))
	if !report.Ready() || len(report.Created) != 3 || !report.RunwayUntil.Equal(day(3).Truncate(retention.Day)) {
		t.Errorf("new keyspace: %+v", report)
	}
	d.insert("short", day(0), completed, day(1))
	d.insert("long", day(0), completed, day(3))

	d.at(day(1))
	d.maintain(retention.Settings{CreateAhead: 2})
	d.want(partitions(0, 3))
	if got := one[time.Time](d, "SELECT honoured_until FROM idempotency.partitions WHERE phase = 'sealed'"); !got.Equal(day(3)) {
		t.Errorf("the sealed partition is honoured until %v, want %v", got, day(3))
	}
	d.at(day(3).Add(-time.Minute))
	d.maintain(retention.Settings{CreateAhead: 2})
	d.want(partitions(0, 0), partitions(3, 5)) // the empty ones of days 1 and 2 are gone
	d.at(day(3).Add(time.Second))
	report = d.maintain(retention.Settings{CreateAhead: 0})
	d.want(partitions(3, 5)) // less ahead than before: what exists stays
	if len(report.Dropped) != 1 || report.Dropped[0].Rows != 2 || report.Dropped[0].Bytes == 0 {
		t.Errorf("dropped: %+v", report.Dropped)
	}
}

// Days are UTC whatever the zones and date styles of server, role and operator, over a leap day and the days on which clocks change.
func TestZones(t *testing.T) {
	for _, test := range []struct {
		name, zone, style string
		start             time.Time
	}{
		{"west, leap day", "America/Sao_Paulo", "SQL, DMY", time.Date(2028, 2, 28, 23, 30, 0, 0, time.UTC)},
		{"east with half an hour", "Asia/Kolkata", "German", time.Date(2026, 11, 30, 19, 0, 0, 0, time.UTC)},
		{"clocks go forward", "Europe/Berlin", "Postgres, DMY", time.Date(2027, 3, 27, 23, 30, 0, 0, time.UTC)},
		{"clocks go back", "America/New_York", "SQL, MDY", time.Date(2027, 11, 6, 12, 0, 0, 0, time.UTC)},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDatabase(t)
			d.exec("ALTER ROLE postgres IN DATABASE " + one[string](d, "SELECT current_database()") + " SET timezone = '" + test.zone + "'")
			d.exec("ALTER ROLE postgres IN DATABASE " + one[string](d, "SELECT current_database()") + " SET datestyle = '" + test.style + "'")
			d.pool.Reset()
			d.at(test.start)
			d.maintain(retention.Settings{CreateAhead: 3})
			d.insert("first", test.start, completed, test.start.Add(50*time.Hour))
			d.insert("second", test.start.Add(24*time.Hour), completed, test.start.Add(50*time.Hour))
			d.at(test.start.Add(30 * time.Hour))
			report := d.maintain(retention.Settings{CreateAhead: 4})
			next := test.start.Truncate(retention.Day)
			for _, p := range report.Partitions {
				if !p.From.Equal(next) || !p.To.Equal(next.Add(retention.Day)) {
					t.Errorf("partition from %s to %s, want the day of %s", p.From, p.To, next)
				}
				next = next.Add(retention.Day)
			}
			if last := test.start.Add(30 * time.Hour).Truncate(retention.Day).Add(5 * retention.Day); !next.Equal(last) {
				t.Errorf("partitions end at %s, want %s", next, last)
			}
			d.insert("last", next.Add(-time.Second), completed, next)
		})
	}
}

// What the operator must not touch.
func TestLeavesAlone(t *testing.T) {
	d := newDatabase(t)
	d.at(day(10))
	d.exec(`CREATE TABLE {{parent}}_old PARTITION OF {{parent}} FOR VALUES FROM (MINVALUE) TO ('2028-01-01 00:00+00')`)
	d.exec(`CREATE TABLE {{parent}}_week PARTITION OF {{parent}} FOR VALUES FROM ('2028-01-01 00:00+00') TO ('2028-01-08 00:00+00')`)
	d.exec(`CREATE TABLE {{parent}}_sub PARTITION OF {{parent}} FOR VALUES FROM ('2028-01-08 00:00+00') TO ('2028-01-09 00:00+00') PARTITION BY RANGE (bucket)`)
	d.exec(`CREATE TABLE {{parent}}_p20280110 (LIKE {{parent}})`) // never ours, though its name looks like it
	d.exec(`CREATE TABLE idempotency.` + retention.Name(parent, day(11)) + ` (id int)`)
	d.exec(`CREATE TABLE public.k_elsewhere PARTITION OF {{parent}} FOR VALUES FROM ('2028-01-09 00:00+00') TO ('2028-01-10 00:00+00')`)
	report := d.maintain(retention.Settings{CreateAhead: 2})
	d.want([]string{parent + "_old", parent + "_p20280110 detached"}, partitions(10, 10), []string{partitions(11, 11)[0] + " detached"}, partitions(12, 12), []string{parent + "_week"})
	if n := one[int](d, "SELECT count(*) FROM pg_class WHERE relname IN ($1, 'k_elsewhere')", parent+"_sub"); n != 2 {
		t.Errorf("%d of 2 other tables are left", n)
	}
	want := map[string]retention.Reason{
		parent + "_old": retention.ReasonBoundsMismatch, parent + "_week": retention.ReasonBoundsMismatch, parent + "_sub": retention.ReasonBoundsMismatch,
		"k_elsewhere": retention.ReasonBoundsMismatch, partitions(11, 11)[0]: retention.ReasonBoundsMismatch, "": retention.ReasonRunwayShort,
	}
	got := map[string]retention.Reason{}
	for _, p := range report.Problems {
		got[p.Relation] = p.Reason
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems: -want +got\n%s", diff)
	}
}

// A table that took the place of one of ours, by hand, is another table: its rows decide, not our record.
func TestReplacedByHand(t *testing.T) {
	d := newDatabase(t)
	d.at(day(0))
	d.maintain(retention.Settings{})
	d.insert("old", day(0), completed, day(2))
	d.at(day(1))
	d.maintain(retention.Settings{})
	name := partitions(0, 0)[0]
	d.exec("DROP TABLE idempotency." + name)
	d.exec("CREATE TABLE idempotency." + name + " PARTITION OF {{parent}} FOR VALUES FROM ('2028-02-27 00:00+00') TO ('2028-02-28 00:00+00')")
	d.insert("new", day(0), completed, day(9))
	d.at(day(3))
	d.maintain(retention.Settings{})
	d.want([]string{name}, partitions(3, 3))
	// Detached by hand, and no longer of any interest to us.
	d.exec("ALTER TABLE {{parent}} DETACH PARTITION idempotency." + name)
	d.at(day(20))
	d.maintain(retention.Settings{})
	d.want([]string{name + " detached"}, partitions(20, 20))
}

func TestRefusals(t *testing.T) {
	for _, test := range []struct {
		name    string
		arrange func(*database)
		want    error
	}{
		{"clocks 11 s apart", func(d *database) { d.clock.by += 11 * time.Second }, retention.ErrClockSkew},
		{"clocks 11 s apart, the other way", func(d *database) { d.clock.by -= 11 * time.Second }, retention.ErrClockSkew},
		{"read-only server", func(d *database) {
			d.exec("ALTER DATABASE " + one[string](d, "SELECT current_database()") + " SET default_transaction_read_only = on")
			d.pool.Reset()
		}, retention.ErrReadOnly},
		{"rows in a default partition", func(d *database) {
			d.exec("CREATE TABLE {{parent}}_rest PARTITION OF {{parent}} DEFAULT")
			d.insert("lost", day(0), completed, day(9))
		}, retention.ErrDefaultPartition},
		{"another manager", func(d *database) {
			unlock, err := d.Lock(context.Background())
			if err != nil {
				d.t.Fatal(err)
			}
			d.t.Cleanup(unlock)
		}, retention.ErrLocked},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDatabase(t)
			d.at(day(1))
			test.arrange(d)
			before := d.tables()
			if _, err := retention.Run(context.Background(), d, retention.Settings{CreateAhead: 1}, d.clock); !errors.Is(err, test.want) {
				t.Errorf("run: %v, want %v", err, test.want)
			}
			d.want(before)
		})
	}
}

// Next to an empty default partition the runway is still kept, and nothing is dropped.
func TestEmptyDefaultPartition(t *testing.T) {
	d := newDatabase(t)
	d.at(day(0))
	d.maintain(retention.Settings{})
	d.exec("CREATE TABLE {{parent}}_rest PARTITION OF {{parent}} DEFAULT")
	d.at(day(5))
	report := d.maintain(retention.Settings{CreateAhead: 1})
	d.want(partitions(0, 0), partitions(5, 6), []string{parent + "_rest"})
	if len(report.Problems) != 1 || report.Problems[0].Reason != retention.ReasonDefaultPartition {
		t.Errorf("problems: %v", report.Problems)
	}
	d.exec("DROP TABLE {{parent}}_rest")
	if report := d.maintain(retention.Settings{CreateAhead: 1}); !report.Ready() {
		t.Errorf("problems: %v", report.Problems)
	}
	d.want(partitions(5, 6))
}

// Dropping the keyspace takes every table of it along, also those that retention was about to drop.
func TestDropKeyspace(t *testing.T) {
	d := newDatabase(t)
	d.at(day(0))
	d.maintain(retention.Settings{CreateAhead: 4})
	d.insert("k", day(0), completed, day(2))
	d.insert("l", day(1), completed, day(2))
	d.at(day(2).Add(-time.Minute))
	d.maintain(retention.Settings{CreateAhead: 3})
	d.at(day(2))
	do := func(action retention.Action, relation string) error {
		_, err := d.Do(context.Background(), retention.Step{Action: action, Partition: retention.Partition{Relation: relation}})
		return err
	}
	detached, pending := partitions(0, 0)[0], partitions(1, 1)[0]
	if err := errors.Join(do(retention.Retire, detached), do(retention.Detach, detached), do(retention.Retire, pending)); err != nil {
		t.Fatal(err)
	}
	end := d.transaction("SELECT count(*) FROM {{parent}}")
	if err := do(retention.Detach, pending); !errors.Is(err, retention.ErrLockTimeout) {
		t.Fatalf("detach beside a reader: %v, want a lock timeout", err)
	}
	end()
	d.want([]string{detached + " detached", pending + " pending"}, partitions(2, 5))
	admin, err := postgres.OpenAdmin(context.Background(), d.dsn, schema)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if err := admin.DropKeyspace(context.Background(), keyspace); err != nil {
		t.Fatal(err)
	}
	d.want()
	if _, err := retention.Run(context.Background(), d, retention.Settings{}, d.clock); !errors.Is(err, retention.ErrNotRegistered) {
		t.Errorf("run without a keyspace: %v, want ErrNotRegistered", err)
	}
}

// One survey says of every keyspace what its own catalogue says, also of one without any partition.
func TestSurvey(t *testing.T) {
	d := newDatabase(t)
	d.at(day(0))
	d.maintain(retention.Settings{CreateAhead: 2})
	d.insert("k", day(0), completed, day(3))
	d.at(day(1))
	d.maintain(retention.Settings{CreateAhead: 2})
	admin, err := postgres.OpenAdmin(context.Background(), d.dsn, schema)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if err := admin.EnsureKeyspace(context.Background(), "shop.new", ""); err != nil {
		t.Fatal(err)
	}
	states, err := admin.Survey(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]retention.State{}
	for _, name := range []string{keyspace, "shop.new"} {
		if want[name], err = admin.Catalogue(name).State(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, states, cmpopts.EquateEmpty(), cmpopts.EquateApproxTime(time.Minute)); diff != "" {
		t.Errorf("survey: -each by itself +survey\n%s", diff)
	}
	if n := len(states[keyspace].Partitions); n != 4 {
		t.Errorf("%d partitions, want 4", n)
	}
}
