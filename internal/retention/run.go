// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// rounds bounds how often one pass reads the catalogue and plans anew: creating, sealing and retiring each enable what the next round finds.
const rounds = 5

// Run maintains one keyspace until nothing is left to do, and reports. A pass that is killed at any point is resumed by the next.
//
// The error says why nothing could be done at all: ErrLocked, ErrReadOnly, ErrClockSkew, ErrDefaultPartition, or that the catalogue could
// not be read. Steps that failed are problems in the report, and the pass goes on with the other partitions.
func Run(ctx context.Context, catalogue Catalogue, settings Settings, clock Clock) (Report, error) {
	unlock, err := catalogue.Lock(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("lock keyspace: %w", err)
	}
	defer unlock()
	pass := pass{catalogue: catalogue, settings: settings.withDefaults(), clock: clock, failed: map[string]Problem{}}
	stuck := false
	for round := 0; ; round++ {
		state, plan, err := Preview(ctx, catalogue, pass.left(), clock)
		if err != nil {
			return pass.report, err
		}
		if round == rounds || stuck || len(pass.due(plan)) == 0 {
			pass.report.sum(state, plan, pass.settings, pass.failed)
			return pass.report, nil
		}
		progress, err := pass.apply(ctx, plan)
		if err != nil {
			return pass.report, err
		}
		stuck = !progress
	}
}

// Preview is the plan that Run would start with.
func Preview(ctx context.Context, catalogue Catalogue, settings Settings, clock Clock) (State, Plan, error) {
	state, err := read(ctx, catalogue, clock)
	if err != nil {
		return state, Plan{}, err
	}
	plan, err := MakePlan(state, settings)
	return state, plan, err
}

// Idle reports on a keyspace without a pass, from a state that was read together with those of others when the caller's clock showed read.
// False: there is something to do or to look at, and it takes a pass.
func Idle(state State, settings Settings, read time.Time) (Report, bool) {
	settings = settings.withDefaults()
	plan, err := MakePlan(state, settings)
	if err != nil || len(plan.Steps) > 0 || state.Now.Sub(read).Abs() > MaxSkew {
		return Report{}, false
	}
	var report Report
	report.sum(state, plan, settings, nil)
	return report, report.Ready()
}

// read reads the state and compares the clocks. The database's clock was read at some instant between the two of ours.
func read(ctx context.Context, catalogue Catalogue, clock Clock) (State, error) {
	before := clock.Now()
	state, err := catalogue.State(ctx)
	if err != nil {
		return State{}, fmt.Errorf("read catalogue: %w", err)
	}
	if state.Now.Before(before.Add(-MaxSkew)) || state.Now.After(clock.Now().Add(MaxSkew)) {
		return state, ErrClockSkew
	}
	return state, nil
}

// pass is one run over one keyspace.
type pass struct {
	catalogue Catalogue
	settings  Settings
	clock     Clock
	report    Report
	// failed partitions, by name, are left alone for the rest of the pass.
	failed map[string]Problem
	drops  int
}

// left is the settings with the drops that this pass may still do.
func (p *pass) left() Settings {
	settings := p.settings
	settings.MaxDrops = cmp.Or(settings.MaxDrops-p.drops, -1)
	return settings
}

// due are the steps of partitions that have not failed in this pass.
func (p *pass) due(plan Plan) []Step {
	return slices.DeleteFunc(slices.Clone(plan.Steps), func(s Step) bool {
		_, failed := p.failed[s.Partition.Relation]
		return failed
	})
}

// apply does the steps that are due, and reports whether anything was changed.
func (p *pass) apply(ctx context.Context, plan Plan) (progress bool, err error) {
	pending := false // a parent has one pending detach at a time
	stopped := map[string]bool{}
	for _, step := range p.due(plan) {
		relation := step.Partition.Relation
		if stopped[relation] || pending && (step.Action == Retire || step.Action == Detach) {
			stopped[relation] = true
			continue
		}
		effect, err := p.attempt(ctx, step)
		switch {
		case ctx.Err() != nil:
			return false, fmt.Errorf("%s partition %s: %w", step.Action, relation, context.Cause(ctx))
		case errors.Is(err, ErrChanged):
			stopped[relation] = true // the next round sees what it has become
		case err != nil:
			stopped[relation] = true
			p.failed[relation] = problemOf(step, err)
			pending = pending || step.Action == Detach
		default:
			progress = true
			p.note(step, effect)
		}
	}
	return progress, nil
}

// attempt does step, again after a jittered wait while locks are not to be had.
func (p *pass) attempt(ctx context.Context, step Step) (Effect, error) {
	wait := 100 * time.Millisecond
	for try := 1; ; try++ {
		effect, err := p.catalogue.Do(ctx, step)
		if !errors.Is(err, ErrLockTimeout) || try >= p.settings.Attempts {
			return effect, err
		}
		if err := p.clock.Wait(ctx, wait/2+rand.N(wait)); err != nil {
			return Effect{}, err
		}
		wait *= 2
	}
}

// note writes a step that was done into the report.
func (p *pass) note(step Step, effect Effect) {
	part := step.Partition
	switch step.Action {
	case Create:
		p.report.Created = append(p.report.Created, part.Relation)
	case Retire:
		p.report.Abandoned += effect.Unsettled
	case Drop:
		p.drops++
		p.report.Dropped = append(p.report.Dropped, Dropped{
			Relation: part.Relation, From: part.From, To: part.To, Rows: part.Rows, Bytes: effect.Bytes,
		})
	case Seal, Detach, Finalize, Restore:
	}
}

// problemOf says what a failed step means to a person.
func problemOf(step Step, err error) Problem {
	problem := Problem{Reason: ReasonFailed, Relation: step.Partition.Relation}
	problem.Message = fmt.Sprintf("cannot %s: %v", step.Action, err)
	switch {
	case errors.Is(err, ErrLockTimeout) && (step.Action == Detach || step.Action == Finalize):
		problem.Reason = ReasonPendingDetach
		problem.Message = fmt.Sprintf("cannot %s: a transaction that began earlier is still open", step.Action)
	case errors.Is(err, ErrLockTimeout):
		problem.Reason = ReasonLockTimeout
		problem.Message = fmt.Sprintf("cannot %s: another session holds a lock on it", step.Action)
	case errors.Is(err, ErrNameTaken):
		problem.Reason = ReasonBoundsMismatch
		problem.Message = "cannot create: a table that is not a partition of this keyspace has this name"
	}
	return problem
}
