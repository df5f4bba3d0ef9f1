// SPDX-License-Identifier: Apache-2.0

// Package sealed keeps recorded answers from whoever can read the store: header and body are encrypted, with AES-256-GCM, before they go there.
//
// A sealed answer opens at the entry that it was recorded for, with the status that it was recorded with, and nowhere else. What cannot be opened, because
// its key is gone or somebody has changed it, is a tombstone: never executed again, and never somebody else's answer. Client, key, status, tombstones and
// the length of an answer stay in clear; so do answers that an app records in its own transaction, or an administrator by a settlement. Whoever can
// write to the store can put a plain answer in a sealed one's place, or an earlier answer of the same entry.
package sealed

import (
	"context"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// Config is what a Store is made of.
type Config struct {
	// Keyspace of the entries.
	Keyspace string
	// Ring is asked at each call for the keys. With nil answers are recorded in clear, and sealed ones are Unreadable.
	Ring func() *Ring
	// Unreadable is told why an answer could not be opened: ErrKeyUnknown or ErrDamaged. It holds nothing of the answer.
	Unreadable func(error)
}

// Store is a keystore.Store whose answers are sealed in another.
type Store struct {
	keystore.Store
	config Config
}

// New returns inner with its answers sealed.
func New(inner keystore.Store, c Config) *Store { return &Store{Store: inner, config: c} }

// Reserve implements keystore.Store. Answers that were recorded in clear are given as they are.
func (s *Store) Reserve(ctx context.Context, r keystore.Reservation) (keystore.Decision, error) {
	d, err := s.Store.Reserve(ctx, r)
	if err != nil || d.Answer == nil || d.Answer.Tombstone != keystore.Sealed {
		return d, err
	}
	answer, err := s.config.Ring().open(place{s.config.Keyspace, r.Client, r.Key}, *d.Answer)
	if err != nil {
		s.config.Unreadable(err)
		answer = keystore.Answer{Tombstone: keystore.Unreadable, Status: d.Answer.Status}
	}
	d.Answer = &answer
	return d, nil
}

// Complete implements keystore.Store. What an answer is sealed with differs from call to call; the first that arrives stays.
func (s *Store) Complete(ctx context.Context, o keystore.Ownership, answer keystore.Answer) error {
	ring := s.config.Ring()
	if ring == nil || answer.Tombstone != "" && answer.Tombstone != keystore.Referenced {
		return s.Store.Complete(ctx, o, answer)
	}
	answer, err := ring.seal(place{s.config.Keyspace, o.Client, o.Key}, answer)
	if err != nil {
		return err
	}
	return s.Store.Complete(ctx, o, answer)
}
