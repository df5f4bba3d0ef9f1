// SPDX-License-Identifier: Apache-2.0

// Package retention makes daily partitions ahead of time and drops them when nothing in them is honoured any more.
//
// Plan is pure arithmetic over what a Catalogue reports; Run applies plans until there is nothing left to do. All instants are the
// database's, in UTC. The life of a partition, and why no step of it can lose an entry, is in docs/spec/retention.md:
//
//	Create -> open -> Seal -> sealed -> Retire -> retiring -> Detach -> detached -> Drop
//	            ^               | a write                |
//	            '---------------'------------------------' Restore: the clock went back
package retention

import (
	"context"
	"errors"
	"time"
)

// Day is the width of a partition.
const Day = 24 * time.Hour

// SealAfter is how long after the end of its day a partition is sealed. Until then a straggler's completion, or a server clock that is
// set back a little, finds it as it was.
const SealAfter = time.Hour

// MaxSkew is how far the clocks of the caller and of the database may differ.
const MaxSkew = 10 * time.Second

var (
	// ErrLocked: another process maintains this keyspace right now.
	ErrLocked = errors.New("another process maintains this keyspace")
	// ErrLockTimeout: a lock was not to be had within the lock timeout. The step changed nothing that a later pass does not resume.
	ErrLockTimeout = errors.New("lock timeout")
	// ErrChanged: the catalogue is no longer as the plan saw it. The step did nothing.
	ErrChanged = errors.New("catalogue has changed since it was read")
	// ErrReadOnly: the server is a standby or read-only.
	ErrReadOnly = errors.New("server is read-only")
	// ErrClockSkew: the clocks of caller and database differ by more than MaxSkew.
	ErrClockSkew = errors.New("clocks of operator and database differ by more than 10s")
	// ErrDefaultPartition: the keyspace has a default partition with rows in it.
	ErrDefaultPartition = errors.New("default partition has rows")
	// ErrNotRegistered: there is no such keyspace in the database.
	ErrNotRegistered = errors.New("keyspace is not registered")
	// ErrNameTaken: a table that is not ours has the name of a partition to be made.
	ErrNameTaken = errors.New("table name is taken")
)

// Catalogue is one keyspace's partitions in a database.
type Catalogue interface {
	// Lock keeps every other process from maintaining this keyspace until unlock is called or the process dies.
	// It fails with ErrLocked. Two holders at once would do no harm: every step checks for itself.
	Lock(ctx context.Context) (unlock func(), err error)
	// State reads the catalogue and the database's clock.
	State(ctx context.Context) (State, error)
	// Do performs one step in short transactions of its own, only if the catalogue is still such that the step is due, and reports what it did.
	// It fails with ErrLockTimeout, ErrChanged, ErrNameTaken or what the driver says.
	Do(ctx context.Context, step Step) (Effect, error)
}

// State is the catalogue of one keyspace at one instant.
type State struct {
	// Now is the database's clock.
	Now time.Time
	// ReadOnly: the server is a standby or read-only.
	ReadOnly bool
	// Parent is the partitioned table's name, without its schema.
	Parent string
	// Partitions are those attached, those whose detaching was interrupted, and those detached but not dropped, in any order.
	Partitions []Partition
}

// Partition is one table that holds, or held, a part of a keyspace.
type Partition struct {
	// Relation is the table's name, without its schema.
	Relation string
	// From and To bound the buckets it holds: From <= bucket < To. Both are zero when its bounds cannot be read as two instants.
	From, To time.Time
	// Link is how the table hangs on its parent.
	Link Link
	// Default: it is the default partition. HasRows is known of a default partition only.
	Default, HasRows bool
	// Foreign says why the table is none that this package may drop, such as another kind of relation. Empty: it is one of ours.
	Foreign string
	// Phase of its life, from our own record.
	Phase Phase
	// HonouredUntil is the latest expiry of any entry in it. Exact in phases Sealed and Retiring; zero when not known.
	HonouredUntil time.Time
	// Unsettled counts the entries that were reserved or unknown when it was sealed.
	Unsettled int64
	// Rows is exact once sealed, else the server's estimate; -1 when there is none. Bytes include TOAST, but not indexes.
	Rows, Bytes int64
}

// Link is how a table hangs on its parent.
type Link int

// The ways to hang on a parent.
const (
	// Attached: it takes part in every query on the keyspace.
	Attached Link = iota
	// PendingDetach: a concurrent detach was interrupted. New queries do not see it.
	PendingDetach
	// Detached: a plain table, known only by our own record.
	Detached
)

// Phase of a partition's life.
type Phase string

// The phases of a partition's life.
const (
	// Open: entries come and change.
	Open Phase = "open"
	// Sealed: its entries are counted, and any write to it makes it Open again.
	Sealed Phase = "sealed"
	// Retiring: nothing in it is honoured and every write to it is refused.
	Retiring Phase = "retiring"
)

// Action is what a Step does.
type Action string

// The actions, in the order of a partition's life.
const (
	// Create makes and attaches the partition [From, To).
	Create Action = "create"
	// Seal counts the entries of a partition whose day is over, and makes every later write undo the seal.
	Seal Action = "seal"
	// Retire refuses writes from now on. It is done only when no entry is honoured.
	Retire Action = "retire"
	// Detach takes it out of the keyspace, concurrently.
	Detach Action = "detach"
	// Finalize ends an interrupted Detach.
	Finalize Action = "finalize"
	// Drop removes the detached table.
	Drop Action = "drop"
	// Restore opens a retiring partition that is honoured again, because the database's clock went back.
	Restore Action = "restore"
)

// Step is one change of the catalogue.
type Step struct {
	Action    Action
	Partition Partition
	// Reason is why, in a few words.
	Reason string
}

// Effect is what a step found when it did its work.
type Effect struct {
	// Bytes of the dropped table, with its indexes and TOAST.
	Bytes int64
	// Unsettled counts the entries without a known outcome that a Retire gave up, because their window was over.
	Unsettled int64
}

// Settings of a keyspace.
type Settings struct {
	// CreateAhead is how many daily partitions exist beyond today's.
	CreateAhead int
	// MaxDrops caps how many partitions one pass drops. Zero: 50; negative: none.
	MaxDrops int
	// Attempts caps how often a step is tried that fails with ErrLockTimeout. Zero: 5.
	Attempts int
}

func (s Settings) withDefaults() Settings {
	if s.MaxDrops == 0 {
		s.MaxDrops = 50
	}
	if s.Attempts == 0 {
		s.Attempts = 5
	}
	return s
}

// Clock is the caller's.
type Clock interface {
	Now() time.Time
	// Wait returns after d, or earlier with the error of a context that ended.
	Wait(ctx context.Context, d time.Duration) error
}
