// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func newMemory(t *testing.T, now time.Time) *memory {
	return &memory{t: t, clock: &memoryClock{now: now}, zone: time.UTC}
}

func maintain(t *testing.T, m *memory, settings Settings) Report {
	t.Helper()
	report, err := Run(context.Background(), m, settings, m.clock)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// Idle says of a state what a pass over it says, and only when the pass has nothing to do and nothing to complain of.
func TestIdle(t *testing.T) {
	m := newMemory(t, at(0, 12))
	settings := Settings{CreateAhead: 3}
	state := func() State {
		s, err := m.State(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if _, idle := Idle(state(), settings, m.clock.now); idle {
		t.Error("a keyspace without partitions is idle")
	}
	maintain(t, m, settings)
	want := maintain(t, m, settings)
	got, idle := Idle(state(), settings, m.clock.now)
	if diff := cmp.Diff(want, got); !idle || diff != "" {
		t.Errorf("idle %t, report: -want +got\n%s", idle, diff)
	}
	for _, test := range []struct {
		name string
		read time.Time
		more int
	}{
		{"clocks apart by more than 10 s", m.clock.now.Add(MaxSkew + 1), 0},
		{"clocks apart, the other way", m.clock.now.Add(-MaxSkew - 1), 0},
		{"more partitions wanted", m.clock.now, 1},
	} {
		if _, idle := Idle(state(), Settings{CreateAhead: 3 + test.more}, test.read); idle {
			t.Errorf("%s: idle", test.name)
		}
	}
	if _, idle := Idle(state(), settings, m.clock.now.Add(MaxSkew)); !idle {
		t.Error("clocks 10 s apart: not idle")
	}
}

// Case 55: a drop fails every night for a month, and the runway never shortens.
func TestFailingDropsCostNoRunway(t *testing.T) {
	m := newMemory(t, at(0, 12))
	m.fail = func(s Step) error {
		if s.Action == Drop || s.Action == Seal {
			return errors.New("disk is broken")
		}
		return nil
	}
	for day := range 30 {
		m.clock.now = at(day, 12)
		report := maintain(t, m, Settings{CreateAhead: 7})
		if want := at(day+8, 0); !report.RunwayUntil.Equal(want) {
			t.Fatalf("day %d: runway until %s, want %s", day, report.RunwayUntil, want)
		}
		if day > 0 && report.Ready() {
			t.Fatalf("day %d: failing steps are not reported", day)
		}
	}
	m.fail = nil
	if report := maintain(t, m, Settings{CreateAhead: 7}); !report.Ready() || report.Count != 8 {
		t.Errorf("once it works again: %d partitions, problems %v", report.Count, report.Problems)
	}
}

// A step that meets a lock is tried again, Attempts times and no more.
func TestAttempts(t *testing.T) {
	for _, test := range []struct {
		locked  int
		created int
	}{{2, 1}, {3, 0}} {
		m := newMemory(t, at(0, 12))
		tries := 0
		m.fail = func(Step) error {
			if tries++; tries <= test.locked {
				return ErrLockTimeout
			}
			return nil
		}
		report := maintain(t, m, Settings{Attempts: 3})
		if len(report.Created) != test.created || tries != 3 {
			t.Errorf("locked %d times: %d tries, created %v", test.locked, tries, report.Created)
		}
	}
}

// No more partitions than the cap go in one pass, the oldest first, and the rest in the next.
func TestMaxDrops(t *testing.T) {
	m := newMemory(t, at(0, 12))
	maintain(t, m, Settings{CreateAhead: 9})
	m.clock.now = at(7, 12)
	for _, want := range []string{"k_p20280228", "k_p20280301"} {
		report := maintain(t, m, Settings{CreateAhead: 9, MaxDrops: 2})
		if len(report.Dropped) != 2 || report.Dropped[0].Relation != want {
			t.Errorf("dropped %v, want two from %s on", report.Dropped, want)
		}
	}
}
