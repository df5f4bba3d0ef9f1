// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"
)

// Three years, hour by hour: outages of up to 40 days, lock conflicts, interrupted detaches, windows of a minute to 30 days, both clocks
// jumping by up to 26 hours and disagreeing at times. memory checks that nothing honoured is ever detached and that nothing overlaps.
func TestSimulatedYears(t *testing.T) {
	for i, zone := range []string{"UTC", "America/Sao_Paulo", "Asia/Kolkata", "Europe/Berlin", "Pacific/Kiritimati"} {
		t.Run(zone, func(t *testing.T) {
			t.Parallel()
			location, err := time.LoadLocation(zone)
			if err != nil {
				t.Fatal(err)
			}
			s := &simulation{
				rand:    rand.New(rand.NewPCG(uint64(i), 53)),
				clock:   &memoryClock{now: time.Date(2026, 11, 30, 19, 0, 0, 0, time.UTC)},
				window:  24 * time.Hour,
				ahead:   7,
				happens: map[string]int{},
			}
			s.catalogue = &memory{t: t, clock: s.clock, zone: location}
			for hour := 0; hour < 3*365*24; hour++ {
				s.hour(t)
			}
			s.settle(t)
			for _, kind := range []string{"outage", "lock", "stuck", "interrupted", "jump", "skew", "dropped", "restored"} {
				if s.happens[kind] == 0 {
					t.Errorf("%s never happened: the simulation shows nothing about it", kind)
				}
			}
			t.Logf("%v", s.happens)
		})
	}
}

// errNoLock fails a step that has not begun. memory leaves a detach half done on ErrLockTimeout.
var errNoLock = errors.New("no lock")

type simulation struct {
	rand      *rand.Rand
	clock     *memoryClock
	catalogue *memory
	window    time.Duration
	ahead     int
	outage    int  // hours until the operator is back
	stuck     bool // a partition was retired and could not be detached
	happens   map[string]int
}

// one in n chances, counted by kind.
func (s *simulation) one(n int, kind string) bool {
	if s.rand.IntN(n) != 0 {
		return false
	}
	s.happens[kind]++
	return true
}

func (s *simulation) hour(t *testing.T) {
	s.clock.now = s.clock.now.Add(time.Hour + time.Duration(s.rand.IntN(1000))*time.Millisecond)
	s.clock.skew = 0
	s.change()
	if len(s.catalogue.parts) > 0 && !s.catalogue.insert(s.window) {
		s.happens["refused"]++
	}
	if s.outage > 0 {
		s.outage--
		return
	}
	s.pass(t)
}

// change is the outside world.
func (s *simulation) change() {
	if s.outage == 0 && s.one(24*30, "outage") {
		s.outage = 1 + s.rand.IntN(40*24)
	}
	if s.one(24*10, "window") {
		s.window = []time.Duration{time.Minute, time.Hour, 24 * time.Hour, 72 * time.Hour, 30 * 24 * time.Hour}[s.rand.IntN(5)]
	}
	if s.one(24*20, "ahead") {
		s.ahead = 1 + s.rand.IntN(14)
	}
	if s.one(24*14, "jump") || s.stuck && s.one(3, "jump") {
		s.clock.now = s.clock.now.Add(time.Duration(s.rand.Int64N(int64(52*time.Hour))) - 26*time.Hour)
	}
	if s.one(24*7, "skew") {
		s.clock.skew = 11 * time.Second
	}
}

// pass runs maintenance as the operator would, with locks that are not always to be had.
func (s *simulation) pass(t *testing.T) {
	s.stuck = false
	blocked := s.rand.IntN(20) == 0
	s.catalogue.fail = func(step Step) error {
		if step.Action == Restore {
			s.happens["restored"]++
		}
		if step.Action == Detach && s.one(8, "stuck") {
			s.stuck, blocked = true, true
			if s.one(2, "interrupted") {
				return ErrLockTimeout
			}
			return errNoLock
		}
		if !blocked || s.rand.IntN(2) == 0 {
			return nil
		}
		s.happens["lock"]++
		return errNoLock
	}
	report, err := Run(context.Background(), s.catalogue, Settings{CreateAhead: s.ahead, Attempts: 1}, s.clock)
	if s.clock.skew != 0 {
		if !errors.Is(err, ErrClockSkew) {
			t.Fatalf("%s: a pass with clocks apart: %v", s.clock.now, err)
		}
		return
	}
	if err != nil {
		t.Fatalf("%s: %v", s.clock.now, err)
	}
	s.happens["dropped"] += len(report.Dropped)
	if !blocked {
		s.check(t, report)
	}
}

// check is what holds after every pass that got its locks, the first after an outage as any other.
func (s *simulation) check(t *testing.T, report Report) {
	want := startOfDay(s.clock.now).Add(time.Duration(s.ahead+1) * Day)
	if report.RunwayUntil.Before(want) || !report.Ready() {
		t.Fatalf("%s: runway until %s, want %s; problems %v", s.clock.now, report.RunwayUntil, want, report.Problems)
	}
	if report.Overdue > 0 {
		t.Fatalf("%s: %d overdue drops after an undisturbed pass", s.clock.now, report.Overdue)
	}
}

// settle ends the traffic: when every window is over, only today's partition and the future ones remain.
func (s *simulation) settle(t *testing.T) {
	s.clock.now, s.clock.skew = s.clock.now.Add(100*Day), 0
	s.catalogue.fail = nil
	report, err := Run(context.Background(), s.catalogue, Settings{CreateAhead: 3, MaxDrops: 200}, s.clock)
	if err != nil {
		t.Fatal(err)
	}
	if report.Count != 4 || len(report.Partitions) != 4 {
		t.Errorf("after every window: %d partitions attached, %d in all; want 4", report.Count, len(report.Partitions))
	}
}
