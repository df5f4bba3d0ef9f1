// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Overdue is how long after its last entry's window a partition counts as overdue for dropping.
const Overdue = time.Hour

// Report is what a pass did and what it left behind.
type Report struct {
	// Now is the database's clock at the end of the pass.
	Now time.Time
	// Count of attached partitions; Oldest and Newest are the days that the first and the last of them hold, zero when there is none.
	Count          int
	Oldest, Newest time.Time
	// RunwayUntil is the instant up to which, from today on, partitions exist without a gap. The start of today when today's is missing.
	RunwayUntil time.Time
	// Partitions as they are at the end, by start.
	Partitions []Partition
	// Created names the partitions made by this pass, Dropped describes those dropped.
	Created []string
	Dropped []Dropped
	// Unsettled counts the entries reserved or unknown in the sealed partitions.
	Unsettled int64
	// Abandoned counts the entries without a known outcome whose window was over and that went with their partition.
	Abandoned int64
	// Overdue counts the partitions that should have been dropped more than Overdue ago.
	Overdue int
	// Problems, the worst first. None: partitions reach as far ahead as asked and no drop is overdue.
	Problems []Problem
}

// Dropped is a partition that is gone.
type Dropped struct {
	Relation    string
	From, To    time.Time
	Rows, Bytes int64
}

// Ready says whether partitions reach as far ahead as asked and no drop is overdue.
func (r Report) Ready() bool { return len(r.Problems) == 0 }

// Runway is how far ahead partitions exist.
func (r Report) Runway() time.Duration { return max(r.RunwayUntil.Sub(r.Now), 0) }

// sum fills in what the final state shows.
func (r *Report) sum(state State, plan Plan, settings Settings, failed map[string]Problem) {
	r.Now = state.Now
	r.Partitions = slices.Clone(state.Partitions)
	slices.SortFunc(r.Partitions, func(a, b Partition) int {
		return cmp.Or(a.From.Compare(b.From), cmp.Compare(a.Relation, b.Relation))
	})
	for _, p := range r.Partitions {
		r.count(p)
		if _, known := failed[p.Relation]; !known && p.overdue(r.Now) {
			r.Problems = append(r.Problems, Problem{Reason: ReasonDropOverdue, Relation: p.Relation, Message: "is overdue for dropping" + p.keptBy()})
		}
	}
	r.RunwayUntil = startOfDay(state.Now)
	for covers(r.Partitions, r.RunwayUntil) {
		r.RunwayUntil = r.RunwayUntil.Add(Day)
	}
	r.Problems = append(r.Problems, plan.Problems...)
	for _, problem := range failed {
		r.Problems = append(r.Problems, problem)
	}
	if missing := settings.CreateAhead + 1 - int(r.RunwayUntil.Sub(startOfDay(state.Now))/Day); missing > 0 {
		r.Problems = append(r.Problems, Problem{
			Reason:  ReasonRunwayShort,
			Message: fmt.Sprintf("partitions exist up to %s only, %d days short", r.RunwayUntil.Format(time.DateOnly), missing),
		})
	}
	slices.SortFunc(r.Problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(severity(a.Reason), severity(b.Reason)), cmp.Compare(a.Relation, b.Relation), cmp.Compare(a.Message, b.Message))
	})
}

func (r *Report) count(p Partition) {
	if p.Link == Attached && p.ours() {
		r.Count++
		r.Newest = p.From
		if r.Oldest.IsZero() {
			r.Oldest = p.From
		}
	}
	if p.Link == Attached {
		r.Unsettled += p.Unsettled
	}
	if p.overdue(r.Now) {
		r.Overdue++
	}
}

func (p Partition) overdue(now time.Time) bool {
	return (p.Link == Attached || p.Phase == Retiring) && p.ours() && !p.HonouredUntil.IsZero() && !p.honoured(now.Add(-Overdue))
}

// keptBy is what probably keeps p from being retired.
func (p Partition) keptBy() string {
	if p.Phase == Sealed && p.Unsettled > 0 {
		return ": a live holder seems to keep an entry reserved beyond its window"
	}
	return ""
}

// severity orders reasons: what threatens writes, what keeps partitions from going, what needs a look.
func severity(reason Reason) int {
	order := []Reason{ReasonRunwayShort, ReasonDefaultPartition, ReasonLockTimeout, ReasonPendingDetach, ReasonDropOverdue, ReasonFailed, ReasonBoundsMismatch}
	return slices.Index(order, reason)
}
