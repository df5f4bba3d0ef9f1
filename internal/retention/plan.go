// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Plan is what there is to do, and what stands in the way of more.
type Plan struct {
	// Steps in the order in which they are to be done. Steps of one partition depend on each other, those of different ones do not.
	Steps    []Step
	Problems []Problem
}

// Reason names a kind of problem, in the words of the policy's condition.
type Reason string

// The reasons.
const (
	ReasonRunwayShort      Reason = "RunwayShort"
	ReasonLockTimeout      Reason = "LockTimeout"
	ReasonDefaultPartition Reason = "DefaultPartitionHasRows"
	ReasonPendingDetach    Reason = "PendingDetach"
	ReasonDropOverdue      Reason = "DropOverdue"
	ReasonBoundsMismatch   Reason = "BoundsMismatch"
	ReasonFailed           Reason = "MaintenanceFailed"
)

// Problem is something that a person may have to look at. Message is stable while the problem is the same.
type Problem struct {
	Reason   Reason
	Relation string
	Message  string
}

// Name of the partition of parent that starts at from. It is at most ten bytes longer than parent.
func Name(parent string, from time.Time) string {
	return parent + "_p" + from.UTC().Format("20060102")
}

// startOfDay is the start of t's UTC day.
func startOfDay(t time.Time) time.Time {
	return t.UTC().Truncate(Day)
}

// regular says that p holds exactly one UTC day.
func (p Partition) regular() bool {
	return !p.From.IsZero() && startOfDay(p.From).Equal(p.From) && p.From.Add(Day).Equal(p.To)
}

// ours says that p may be changed and dropped.
func (p Partition) ours() bool {
	return p.Foreign == "" && !p.Default && p.regular()
}

func (p Partition) overlaps(from, to time.Time) bool {
	return p.From.Before(to) && from.Before(p.To)
}

// MakePlan says what to do about state. It does no I/O, and fails with ErrReadOnly or ErrDefaultPartition when nothing may be done.
//
// Creating comes first, and nothing is retired before today's partition is seen attached: the newest partition may be taking entries
// while today's is missing, and a drop that fails must not cost runway.
func MakePlan(state State, settings Settings) (Plan, error) {
	settings = settings.withDefaults()
	if state.ReadOnly {
		return Plan{}, ErrReadOnly
	}
	partitions := slices.Clone(state.Partitions)
	slices.SortFunc(partitions, func(a, b Partition) int {
		return cmp.Or(a.From.Compare(b.From), cmp.Compare(a.Relation, b.Relation))
	})
	var plan Plan
	hasDefault := false
	for _, p := range partitions {
		if p.Default && p.HasRows {
			return Plan{}, fmt.Errorf("%s: %w", p.Relation, ErrDefaultPartition)
		}
		hasDefault = hasDefault || p.Default
		plan.inspect(p)
	}
	plan.create(state, partitions, settings.CreateAhead)
	if hasDefault {
		return plan, nil // PostgreSQL cannot detach concurrently next to a default partition
	}
	plan.tidy(state, partitions)
	if covers(partitions, startOfDay(state.Now)) {
		plan.retire(state, partitions, settings.MaxDrops)
	}
	return plan, nil
}

// inspect notes what is odd about p.
func (plan *Plan) inspect(p Partition) {
	problem := Problem{Relation: p.Relation}
	switch {
	case p.Default:
		problem.Reason, problem.Message = ReasonDefaultPartition, "a default partition keeps partitions from being dropped: detach it"
	case p.Foreign != "":
		problem.Reason, problem.Message = ReasonBoundsMismatch, "is left alone: "+p.Foreign
	case !p.regular():
		problem.Reason, problem.Message = ReasonBoundsMismatch, "is left alone: its bounds are not one UTC day"
	default:
		return
	}
	plan.Problems = append(plan.Problems, problem)
}

// create fills every day from today to createAhead days on that no partition touches. Days that passed without one stay as they are.
func (plan *Plan) create(state State, partitions []Partition, createAhead int) {
	today := startOfDay(state.Now)
	for i := range createAhead + 1 {
		from := today.Add(time.Duration(i) * Day)
		to := from.Add(Day)
		taken := slices.ContainsFunc(partitions, func(p Partition) bool {
			return p.Link != Detached && p.overlaps(from, to) || p.Link == Detached && p.Relation == Name(state.Parent, from)
		})
		if taken {
			continue
		}
		plan.Steps = append(plan.Steps, Step{
			Action:    Create,
			Partition: Partition{Relation: Name(state.Parent, from), From: from, To: to},
			Reason:    "no partition holds this day",
		})
	}
}

// tidy finishes what an earlier pass, or somebody else, left half done.
func (plan *Plan) tidy(state State, partitions []Partition) {
	for _, p := range partitions {
		switch {
		case p.Link == PendingDetach:
			plan.add(Finalize, p, "detaching was interrupted")
			if p.Phase == Retiring && p.ours() {
				plan.add(Drop, p, "it was retired")
			}
		case p.Link == Detached && p.Phase == Retiring && p.ours():
			plan.add(Drop, p, "it was retired and detached")
		case p.Link == Attached && p.Phase == Retiring && p.ours() && p.honoured(state.Now):
			plan.add(Restore, p, "the database's clock went back: entries are honoured again")
		}
	}
}

// honoured says whether p's day or any entry's window is not over at now.
func (p Partition) honoured(now time.Time) bool {
	return now.Before(p.To.Add(SealAfter)) || now.Before(p.HonouredUntil)
}

// maxSeals caps how many partitions one plan seals: each is read once from end to end.
const maxSeals = 50

// retire moves partitions whose day is over along their lives, oldest first, and drops at most limit of them.
func (plan *Plan) retire(state State, partitions []Partition, limit int) {
	seals, drops := 0, 0
	for _, p := range partitions {
		switch p.Link {
		case PendingDetach:
			limit = 0 // one parent has one pending detach at a time: finalize it first
		case Detached:
			drops++
		case Attached:
		}
	}
	for _, p := range partitions {
		if p.Link != Attached || !p.ours() || p.honoured(state.Now) {
			continue
		}
		switch {
		case p.Phase == Retiring && drops < limit:
			drops++
			plan.add(Detach, p, "it was retired")
			plan.add(Drop, p, "it was retired")
		case p.Phase == Sealed && !p.HonouredUntil.IsZero() && drops < limit:
			drops++
			reason := "nothing in it is honoured since " + p.HonouredUntil.UTC().Format(time.RFC3339)
			plan.add(Retire, p, reason)
			plan.add(Detach, p, reason)
			plan.add(Drop, p, reason)
		case (p.Phase == Open || p.HonouredUntil.IsZero()) && seals < maxSeals:
			seals++
			plan.add(Seal, p, "its day is over")
		}
	}
}

func (plan *Plan) add(action Action, p Partition, reason string) {
	plan.Steps = append(plan.Steps, Step{Action: action, Partition: p, Reason: reason})
}

// covers says whether an attached partition holds the day that starts at from.
func covers(partitions []Partition, from time.Time) bool {
	return slices.ContainsFunc(partitions, func(p Partition) bool {
		return p.Link == Attached && p.ours() && p.From.Equal(from)
	})
}
