// SPDX-License-Identifier: Apache-2.0

// Package redis keeps entries in Redis, 7.0 or newer: one server, a primary behind sentinels, or a cluster. Each transition of an entry is one Lua
// script. docs/spec/keystore-redis.md describes the keys, the users' rights, and what Redis cannot promise.
package redis

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
)

const (
	defaultTimeout = 5 * time.Second
	// keepReserved is how much longer than its window an unfinished entry stays in memory, should its holder still be alive: much longer than any
	// request takes.
	keepReserved = 31 * 24 * time.Hour
)

// Config says where a keyspace is.
type Config struct {
	// DSN is a connection string of the sidecar's user, see docs/spec/keystore-redis.md.
	DSN string
	// Keyspace that the operator has made.
	Keyspace string
	// MinReplicas have to confirm what a call has written, or it is ErrUnavailable. 0: the primary alone.
	MinReplicas int
	// Timeout bounds every call, beside the caller's context. 0: 5 seconds.
	Timeout time.Duration
}

// Store is a keystore.Store on Redis. It connects when it is first used.
type Store struct {
	*servers
	keys    *keyspace
	scripts scripts
}

var _ keystore.Store = (*Store)(nil)

// Open prepares a store. It does not wait for the server, and fails only with keystore.ErrDSNInvalid.
func Open(c Config) (*Store, error) { return open(c, nil) }

func open(c Config, dial dialer) (*Store, error) {
	servers, err := openServers(c.DSN, orDefault(c.Timeout, defaultTimeout), c.MinReplicas, dial)
	if err != nil {
		return nil, err
	}
	return &Store{servers: servers, keys: newKeyspace(c.Keyspace), scripts: newScripts()}, nil
}

func orDefault[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// Reserve implements keystore.Store. A lease that it begins is told to the other buckets; the reservation does not depend on that.
func (s *Store) Reserve(ctx context.Context, r keystore.Reservation) (keystore.Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	b, entry := s.keys.locate(r.Client, r.Key)
	seed := keystore.NewToken()
	takeOver := 0
	if r.TakeOver {
		takeOver = 1
	}
	c := command{
		script: s.scripts.reserve,
		keys:   []string{entry, b.leases() + r.Holder.String(), b.epoch()},
		args: []any{r.Client, r.Key, r.Fingerprint[:], r.Token[:], r.Holder.String(), r.Lease.Microseconds(), r.Window.Microseconds(), r.Route,
			takeOver, seed[:], b.leases(), keepReserved.Microseconds()},
	}
	answer, _ := s.transition(ctx, b, c)
	if answer.err != nil {
		return keystore.Decision{}, unavailable(ctx, "reserve", answer.err)
	}
	d, renewed, err := decode(answer.value)
	if err != nil {
		return keystore.Decision{}, fmt.Errorf("reserve: %w: %w", keystore.ErrUnavailable, err)
	}
	if granted := d.Outcome == keystore.New || d.Outcome == keystore.TakenOver; granted && answer.short {
		return keystore.Decision{}, unavailable(ctx, "reserve", errReplicas)
	}
	if renewed {
		_ = s.KeepAlive(ctx, r.Holder, r.Lease)
	}
	return d, nil
}

// transition runs a script on one entry; once more, with the lease of the holder that the script asks for, when that is not sure to be where the entry is.
func (s *Store) transition(ctx context.Context, b bucket, c command) (r reply, repeated bool) {
	for {
		var again bool
		r, again = s.call(ctx, c)
		repeated = repeated || again
		row, _ := r.value.([]any)
		if r.err != nil || len(row) != 2 || row[0] != int64(declare) {
			return r, repeated
		}
		holder, _ := row[1].(string)
		c.keys = append(c.keys[:len(c.keys):len(c.keys)], b.leases()+holder)
	}
}

// own runs a script that only the owner of an entry may.
func (s *Store) own(ctx context.Context, verb string, script script, o keystore.Ownership, args ...any) (owner, repeated bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	b, entry := s.keys.locate(o.Client, o.Key)
	r, repeated := s.transition(ctx, b, command{script: script, keys: []string{entry}, args: append([]any{o.Token[:], b.leases()}, args...)})
	owner = r.value == int64(1)
	if r.err == nil && r.short && owner {
		r.err = errReplicas
	}
	if r.err != nil {
		return false, repeated, unavailable(ctx, verb, r.err)
	}
	return owner, repeated, nil
}

func owned(owner bool, err error) error {
	if err == nil && !owner {
		return keystore.ErrNotOwner
	}
	return err
}

// Complete implements keystore.Store.
func (s *Store) Complete(ctx context.Context, o keystore.Ownership, answer keystore.Answer) error {
	header, err := encodeHeader(answer.Header)
	if err != nil {
		return err
	}
	owner, _, err := s.own(ctx, "complete", s.scripts.complete, o, string(answer.Tombstone), answer.Status, header, answer.Body)
	return owned(owner, err)
}

// Release implements keystore.Store. When the answer to a first attempt was lost and the second finds nothing to release, the first has done it.
func (s *Store) Release(ctx context.Context, o keystore.Ownership) error {
	owner, repeated, err := s.own(ctx, "release", s.scripts.release, o)
	return owned(owner || repeated, err)
}

// MarkUnknown implements keystore.Store.
func (s *Store) MarkUnknown(ctx context.Context, o keystore.Ownership) error {
	owner, _, err := s.own(ctx, "mark unknown", s.scripts.markUnknown, o)
	return owned(owner, err)
}

// KeepAlive implements keystore.Store.
func (s *Store) KeepAlive(ctx context.Context, holder keystore.Holder, lease time.Duration) error {
	return s.everywhere(ctx, "keep alive", func(b bucket) command {
		return command{script: s.scripts.keepAlive, keys: []string{b.leases() + holder.String()}, args: []any{lease.Microseconds()}}
	})
}

// Retire implements keystore.Store.
func (s *Store) Retire(ctx context.Context, holder keystore.Holder) error {
	return s.everywhere(ctx, "retire", func(b bucket) command {
		return command{script: s.scripts.retire, keys: []string{b.leases() + holder.String()}}
	})
}

// Check implements keystore.Store: every bucket must take reservations.
func (s *Store) Check(ctx context.Context) error {
	return s.everywhere(ctx, "check", func(b bucket) command { return command{script: s.scripts.check, keys: []string{b.epoch()}} })
}

// everywhere runs a script in every bucket at once. Where one fails the others have been done all the same.
func (s *Store) everywhere(ctx context.Context, verb string, in func(bucket) command) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var replies [buckets]reply
	var group sync.WaitGroup
	for i, b := range s.keys {
		group.Go(func() { replies[i], _ = s.call(ctx, in(b)) })
	}
	group.Wait()
	for _, r := range replies {
		if r.err == nil && r.short {
			r.err = errReplicas
		}
		if r.err != nil {
			return unavailable(ctx, verb, r.err)
		}
	}
	return nil
}
