// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// at is a day and hour of the tests' calendar: day 0 is 2028-02-28, so that day 1 is the 29th of February.
func at(day, hour int) time.Time {
	return time.Date(2028, 2, 28+day, hour, 0, 0, 0, time.UTC)
}

// part is an attached partition of the given day.
func part(day int, change ...func(*Partition)) Partition {
	p := Partition{Relation: Name("k", at(day, 0)), From: at(day, 0), To: at(day+1, 0), Phase: Open}
	for _, c := range change {
		c(&p)
	}
	return p
}

func sealed(until time.Time) func(*Partition) {
	return func(p *Partition) { p.Phase, p.HonouredUntil = Sealed, until }
}

func retiring(until time.Time) func(*Partition) {
	return func(p *Partition) { p.Phase, p.HonouredUntil = Retiring, until }
}

func linked(l Link) func(*Partition) { return func(p *Partition) { p.Link = l } }

func TestMakePlan(t *testing.T) {
	days := func(from, to int) []Partition {
		var all []Partition
		for d := from; d <= to; d++ {
			all = append(all, part(d))
		}
		return all
	}
	foreign := func(p *Partition) { p.Foreign = "it is a foreign table" }
	week := Partition{Relation: "week", From: at(1, 0), To: at(8, 0), Phase: Open}
	shifted := Partition{Relation: "shifted", From: at(-9, 3), To: at(-8, 3), Phase: Open}
	unreadable := Partition{Relation: "minvalue", Phase: Open}
	for _, test := range []struct {
		name       string
		now        time.Time
		partitions []Partition
		settings   Settings
		want       []string
		problems   []Reason
		reason     string
	}{
		{name: "new keyspace", now: at(0, 12), settings: Settings{CreateAhead: 2},
			want: []string{"create k_p20280228", "create k_p20280229", "create k_p20280301"}, reason: "today and createAhead days, over a leap day"},
		{name: "complete", now: at(0, 12), partitions: days(0, 2), settings: Settings{CreateAhead: 2}, reason: "nothing to do"},
		{name: "last nanosecond of the day", now: at(1, 0).Add(-1), partitions: days(0, 2), settings: Settings{CreateAhead: 2}, reason: "the day is not over"},
		{name: "first nanosecond of the day", now: at(1, 0), partitions: days(0, 2), settings: Settings{CreateAhead: 2},
			want: []string{"create k_p20280302"}, reason: "the day has begun"},
		{name: "createAhead lowered", now: at(0, 12), partitions: days(0, 9), settings: Settings{CreateAhead: 1}, reason: "future partitions stay"},
		{name: "gap in the future", now: at(0, 12), partitions: append(days(0, 0), part(2)), settings: Settings{CreateAhead: 2},
			want: []string{"create k_p20280229"}, reason: "gaps are filled forward"},
		{name: "down for longer than the runway", now: at(10, 12), partitions: days(0, 2), settings: Settings{CreateAhead: 1},
			want: []string{"create k_p20280309", "create k_p20280310"}, reason: "no past day is made, and nothing goes before today's is there"},
		{name: "seal not yet", now: at(1, 1).Add(-1), partitions: days(0, 2), settings: Settings{CreateAhead: 1}, reason: "stragglers have an hour"},
		{name: "seal", now: at(1, 1), partitions: days(0, 2), settings: Settings{CreateAhead: 1}, want: []string{"seal k_p20280228"}, reason: "the hour is over"},
		{name: "seal again", now: at(1, 1), partitions: append(days(1, 2), part(0, sealed(time.Time{}))), settings: Settings{CreateAhead: 1},
			want: []string{"seal k_p20280228"}, reason: "an interrupted seal has no count"},
		{name: "honoured to the last nanosecond", now: at(3, 5).Add(-1), partitions: append(days(3, 4), part(0, sealed(at(3, 5)))), settings: Settings{CreateAhead: 1},
			reason: "an entry expires when the clock reaches its expiry, not before"},
		{name: "nothing honoured", now: at(3, 5), partitions: append(days(3, 4), part(0, sealed(at(3, 5)))), settings: Settings{CreateAhead: 1},
			want: []string{"retire k_p20280228", "detach k_p20280228", "drop k_p20280228"}, reason: "the last window is over"},
		{name: "today's is missing", now: at(3, 5), partitions: append(days(1, 2), part(0, sealed(at(3, 5)))), settings: Settings{CreateAhead: 0},
			want: []string{"create k_p20280302"}, reason: "the newest one may be taking entries: nothing is retired or sealed"},
		{name: "retired, not detached", now: at(3, 5), partitions: append(days(3, 3), part(0, retiring(at(3, 5)))),
			want: []string{"detach k_p20280228", "drop k_p20280228"}, reason: "resumed after a crash"},
		{name: "detach interrupted", now: at(3, 5), partitions: append(days(3, 3), part(0, retiring(at(3, 5)), linked(PendingDetach))),
			want: []string{"finalize k_p20280228", "drop k_p20280228"}, reason: "resumed after a crash"},
		{name: "detach interrupted, another one due", now: at(3, 5), partitions: append(days(3, 3), part(0, sealed(at(3, 5))), part(1, retiring(at(3, 5)), linked(PendingDetach))),
			want: []string{"finalize k_p20280229", "drop k_p20280229"}, reason: "one parent has one pending detach at a time"},
		{name: "somebody else's detach interrupted", now: at(3, 5), partitions: append(days(3, 3), part(0, linked(PendingDetach))),
			want: []string{"finalize k_p20280228"}, reason: "it blocks every other detach, but it is not ours to drop"},
		{name: "detached, not dropped", now: at(3, 5), partitions: append(days(3, 3), part(0, retiring(at(3, 5)), linked(Detached))),
			want: []string{"drop k_p20280228"}, reason: "found by our own record"},
		{name: "detached by somebody else", now: at(3, 5), partitions: append(days(3, 3), part(0, sealed(at(3, 5)), linked(Detached))),
			reason: "we did not retire it"},
		{name: "clock went back, retired", now: at(0, 5), partitions: append(days(1, 1), part(0, retiring(at(1, 5)))), settings: Settings{CreateAhead: 1},
			want: []string{"restore k_p20280228"}, reason: "today's must take entries"},
		{name: "clock went back, detached", now: at(0, 5), partitions: append(days(1, 1), part(0, retiring(at(1, 5)), linked(Detached))), settings: Settings{CreateAhead: 1},
			want: []string{"drop k_p20280228"}, reason: "its name is needed; it was forgotten when it was detached"},
		{name: "drops capped", now: at(3, 5), settings: Settings{MaxDrops: 1}, reason: "oldest first",
			partitions: append(days(3, 3), part(1, sealed(at(3, 1))), part(0, sealed(at(3, 1)))),
			want:       []string{"retire k_p20280228", "detach k_p20280228", "drop k_p20280228"}},
		{name: "no drops left", now: at(3, 5), settings: Settings{MaxDrops: -1}, partitions: append(days(3, 3), part(0, sealed(at(3, 1)))), reason: "the cap is used up"},
		{name: "current and future never", now: at(0, 5), settings: Settings{CreateAhead: 1},
			partitions: []Partition{part(0, sealed(at(-5, 0))), part(1, sealed(at(-5, 0)))}, reason: "whatever the record says"},
		{name: "foreign table", now: at(3, 5), partitions: append(days(3, 3), part(0, sealed(at(1, 0)), foreign)),
			problems: []Reason{ReasonBoundsMismatch}, reason: "not ours"},
		{name: "odd bounds", now: at(3, 5), partitions: append(days(9, 9), shifted, unreadable, week), settings: Settings{CreateAhead: 6},
			want: []string{"create k_p20280307"}, problems: []Reason{ReasonBoundsMismatch, ReasonBoundsMismatch, ReasonBoundsMismatch},
			reason: "what overlaps is not made, and none of it is dropped"},
		{name: "empty default partition", now: at(3, 5), partitions: append(days(0, 2), Partition{Relation: "rest", Default: true}),
			want: []string{"create k_p20280302"}, problems: []Reason{ReasonDefaultPartition}, reason: "runway first, but no detach works next to it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			plan, err := MakePlan(State{Now: test.now, Parent: "k", Partitions: test.partitions}, test.settings)
			if err != nil {
				t.Fatal(err)
			}
			var steps []string
			for _, s := range plan.Steps {
				steps = append(steps, fmt.Sprintf("%s %s", s.Action, s.Partition.Relation))
			}
			if diff := cmp.Diff(test.want, steps); diff != "" {
				t.Errorf("steps (%s): -want +got\n%s", test.reason, diff)
			}
			var problems []Reason
			for _, p := range plan.Problems {
				problems = append(problems, p.Reason)
			}
			if diff := cmp.Diff(test.problems, problems); diff != "" {
				t.Errorf("problems: -want +got\n%s", diff)
			}
		})
	}
}

func TestMakePlanRefuses(t *testing.T) {
	for _, test := range []struct {
		name  string
		state State
		want  error
	}{
		{"standby", State{Now: at(0, 0), ReadOnly: true}, ErrReadOnly},
		{"rows in the default partition", State{Now: at(0, 0), Partitions: []Partition{{Relation: "rest", Default: true, HasRows: true}}}, ErrDefaultPartition},
	} {
		t.Run(test.name, func(t *testing.T) {
			plan, err := MakePlan(test.state, Settings{CreateAhead: 7})
			if !errors.Is(err, test.want) || len(plan.Steps) > 0 {
				t.Errorf("MakePlan = %v, %v; want no steps and %v", plan.Steps, err, test.want)
			}
		})
	}
}

// Instants in any zone name the same partitions: bounds are UTC days.
func TestMakePlanIsInUTC(t *testing.T) {
	want, err := MakePlan(State{Now: at(0, 23), Parent: "k"}, Settings{CreateAhead: 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"America/Sao_Paulo", "Asia/Kolkata", "Pacific/Kiritimati"} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := MakePlan(State{Now: at(0, 23).In(zone), Parent: "k"}, Settings{CreateAhead: 3})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("in %s: -want +got\n%s", name, diff)
		}
	}
}
