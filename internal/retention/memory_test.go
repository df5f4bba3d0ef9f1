// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// memory is a Catalogue without a database. It does what a step says and trusts the plan: only the reports of its checks fail a test.
type memory struct {
	t     *testing.T
	clock *memoryClock
	zone  *time.Location
	parts []*memoryPart
	// fail, when set, is asked before each step. A Detach that fails stays half done.
	fail func(Step) error
	busy bool
}

type memoryPart struct {
	Partition
	expiries []time.Time
}

type memoryClock struct {
	now  time.Time
	skew time.Duration // of the operator's clock against the database's
}

func (c *memoryClock) Now() time.Time                                  { return c.now.Add(c.skew) }
func (c *memoryClock) Wait(ctx context.Context, _ time.Duration) error { return ctx.Err() }

func (m *memory) Lock(context.Context) (func(), error) {
	if m.busy {
		return nil, ErrLocked
	}
	return func() {}, nil
}

func (m *memory) State(context.Context) (State, error) {
	state := State{Now: m.clock.now.In(m.zone), Parent: "k"}
	for _, p := range m.parts {
		seen := p.Partition
		seen.From, seen.To = seen.From.In(m.zone), seen.To.In(m.zone)
		state.Partitions = append(state.Partitions, seen)
	}
	return state, nil
}

func (m *memory) find(relation string) *memoryPart {
	for _, p := range m.parts {
		if p.Relation == relation {
			return p
		}
	}
	return nil
}

func (m *memory) Do(_ context.Context, step Step) (Effect, error) {
	if m.fail != nil {
		if err := m.fail(step); err != nil {
			if step.Action == Detach && errors.Is(err, ErrLockTimeout) {
				m.detach(step.Partition.Relation, PendingDetach)
			}
			return Effect{}, err
		}
	}
	p := m.find(step.Partition.Relation)
	if step.Action == Create {
		return Effect{}, m.create(step.Partition, p)
	}
	if p == nil {
		return Effect{}, ErrChanged
	}
	switch step.Action {
	case Seal:
		p.Phase, p.HonouredUntil, p.Rows = Sealed, p.To, int64(len(p.expiries))
		for _, e := range p.expiries {
			if e.After(p.HonouredUntil) {
				p.HonouredUntil = e
			}
		}
	case Retire:
		if p.Phase != Sealed {
			return Effect{}, ErrChanged
		}
		p.Phase = Retiring
	case Detach:
		m.detach(p.Relation, Detached)
	case Finalize:
		p.Link = Detached
		if p.Phase != Retiring {
			m.remove(p)
		}
	case Drop:
		m.remove(p)
		return Effect{Bytes: 1}, nil
	case Restore:
		p.Phase, p.HonouredUntil = Open, time.Time{}
	case Create:
	}
	return Effect{}, nil
}

func (m *memory) create(want Partition, existing *memoryPart) error {
	if existing != nil {
		return ErrNameTaken
	}
	for _, p := range m.parts {
		if p.Link != Detached && p.overlaps(want.From, want.To) {
			m.t.Errorf("%s: %s would overlap %s", m.clock.now, want.Relation, p.Relation)
			return fmt.Errorf("overlap with %s", p.Relation)
		}
	}
	want.Phase = Open
	m.parts = append(m.parts, &memoryPart{Partition: want})
	return nil
}

// detach takes the partition out of every lookup: whatever is honoured now would be lost.
func (m *memory) detach(relation string, link Link) {
	p := m.find(relation)
	if p.Phase != Retiring {
		m.t.Errorf("%s: %s is detached in phase %s", m.clock.now, relation, p.Phase)
	}
	if !p.To.Before(m.clock.now) {
		m.t.Errorf("%s: %s is detached before its day is over", m.clock.now, relation)
	}
	for _, e := range p.expiries {
		if e.After(m.clock.now) {
			m.t.Errorf("%s: %s is detached with an entry honoured until %s", m.clock.now, relation, e)
		}
	}
	p.Link = link
}

func (m *memory) remove(p *memoryPart) {
	m.parts = slices.DeleteFunc(m.parts, func(q *memoryPart) bool { return q == p })
}

// insert is what reserve does: into today's partition, or the newest one while today's is missing. Any write undoes a seal.
func (m *memory) insert(window time.Duration) bool {
	var target *memoryPart
	for _, p := range m.parts {
		if p.Link != Attached {
			continue
		}
		if p.From.Equal(startOfDay(m.clock.now)) {
			target = p
			break
		}
		if target == nil || p.From.After(target.From) {
			target = p
		}
	}
	if target == nil || target.Phase == Retiring {
		return false
	}
	if target.Phase == Sealed {
		target.Phase, target.HonouredUntil = Open, time.Time{}
	}
	target.expiries = append(target.expiries, m.clock.now.Add(window))
	return true
}
