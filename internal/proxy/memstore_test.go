// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// memStore keeps entries in memory, by the rules of keystore.Store, and fails where a test tells it to.
type memStore struct {
	mu      sync.Mutex
	entries map[[2]string]*memEntry
	holders map[keystore.Holder]time.Time
	fail    map[string]error // by method
	before  map[string]func()
	calls   map[string]int
	closed  bool
	retired bool
}

type memEntry struct {
	keystore.Reservation
	seed     [16]byte
	expires  time.Time
	reserved time.Time
	attempts int
	unknown  bool
	answer   *keystore.Answer
}

func newMemStore() *memStore {
	return &memStore{
		entries: map[[2]string]*memEntry{}, holders: map[keystore.Holder]time.Time{},
		fail: map[string]error{}, before: map[string]func(){}, calls: map[string]int{},
	}
}

// failing makes methods fail until they are told otherwise with nil.
func (s *memStore) failing(err error, methods ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range methods {
		s.fail[m] = err
	}
}

func (s *memStore) hook(method string, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before[method] = f
}

func (s *memStore) count(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

// enter counts the call, runs its hook and reports its fault.
func (s *memStore) enter(method string) error {
	s.mu.Lock()
	s.calls[method]++
	hook := s.before[method]
	s.mu.Unlock()
	if hook != nil {
		hook()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fail[method]
}

func (s *memStore) get(client, key string) *memEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[[2]string{client, key}]
	if e == nil {
		return nil
	}
	c := *e
	return &c
}

func (s *memStore) Reserve(_ context.Context, r keystore.Reservation) (keystore.Decision, error) {
	err := s.enter("Reserve")
	if err != nil {
		return keystore.Decision{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	id := [2]string{r.Client, r.Key}
	e := s.entries[id]
	if e != nil && now.After(e.expires) && (e.answer != nil || e.unknown || now.After(s.holders[e.Holder])) {
		e = nil
	}
	switch {
	case e == nil:
		e = &memEntry{Reservation: r, seed: keystore.NewToken(), expires: now.Add(r.Window), reserved: now}
		s.entries[id] = e
		return s.given(e, r), nil
	case e.Fingerprint != r.Fingerprint:
		return keystore.Decision{Outcome: keystore.Mismatch}, nil
	case e.answer != nil:
		return keystore.Decision{Outcome: keystore.Completed, Answer: e.answer}, nil
	case e.Token == r.Token && !e.unknown: // the answer to this very call was lost
		e.attempts--
		return s.given(e, r), nil
	case !e.unknown && now.Before(s.holders[e.Holder]):
		return keystore.Decision{Outcome: keystore.InFlight, LeaseRemaining: s.holders[e.Holder].Sub(now), Since: now.Sub(e.reserved)}, nil
	case !r.TakeOver:
		return keystore.Decision{Outcome: keystore.Unknown, Since: now.Sub(e.reserved)}, nil
	}
	e.Token, e.Holder, e.unknown, e.expires = r.Token, r.Holder, false, now.Add(r.Window)
	return s.given(e, r), nil
}

// given is the answer to an attempt that holds e from now on, for half of its lease at least.
func (s *memStore) given(e *memEntry, r keystore.Reservation) keystore.Decision {
	e.attempts++
	now := time.Now()
	if s.holders[r.Holder].Before(now.Add(r.Lease / 2)) {
		s.holders[r.Holder] = now.Add(r.Lease)
	}
	if e.attempts > 1 {
		return keystore.Decision{Outcome: keystore.TakenOver, Seed: e.seed}
	}
	return keystore.Decision{Outcome: keystore.New, Seed: e.seed}
}

// owned is the entry of o, while it is reserved with o's token.
func (s *memStore) owned(o keystore.Ownership) (*memEntry, error) {
	e := s.entries[[2]string{o.Client, o.Key}]
	if e == nil || e.Token != o.Token {
		return nil, keystore.ErrNotOwner
	}
	return e, nil
}

func (s *memStore) Complete(_ context.Context, o keystore.Ownership, a keystore.Answer) error {
	if err := s.enter("Complete"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := s.owned(o)
	if err == nil && e.answer == nil {
		a.Body = append([]byte(nil), a.Body...)
		e.answer, e.unknown, e.expires = &a, false, time.Now().Add(e.Window)
	}
	return err
}

func (s *memStore) Release(_ context.Context, o keystore.Ownership) error {
	if err := s.enter("Release"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := s.owned(o)
	if err != nil || e.answer != nil || e.unknown && e.attempts == 1 {
		return keystore.ErrNotOwner
	}
	if e.attempts > 1 { // an earlier attempt may have taken effect
		if !e.unknown {
			e.unknown, e.expires = true, time.Now().Add(e.Window)
		}
		return nil
	}
	delete(s.entries, [2]string{o.Client, o.Key})
	return nil
}

func (s *memStore) MarkUnknown(_ context.Context, o keystore.Ownership) error {
	if err := s.enter("MarkUnknown"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := s.owned(o)
	if err != nil || e.answer != nil {
		return keystore.ErrNotOwner
	}
	e.unknown = true
	return nil
}

func (s *memStore) KeepAlive(_ context.Context, h keystore.Holder, lease time.Duration) error {
	if err := s.enter("KeepAlive"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holders[h] = time.Now().Add(lease)
	return nil
}

func (s *memStore) Retire(_ context.Context, h keystore.Holder) error {
	if err := s.enter("Retire"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.holders, h)
	s.retired = true
	return nil
}

func (s *memStore) Check(context.Context) error { return s.enter("Check") }

func (s *memStore) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

func (s *memStore) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// lossyStore makes reservations and loses its answers, and does not answer to Check either.
type lossyStore struct {
	*memStore
	lose atomic.Bool
}

func (s *lossyStore) Check(ctx context.Context) error {
	if s.lose.Load() {
		return keystore.ErrUnavailable
	}
	return s.memStore.Check(ctx)
}

func (s *lossyStore) Reserve(ctx context.Context, r keystore.Reservation) (keystore.Decision, error) {
	d, err := s.memStore.Reserve(ctx, r)
	if s.lose.Load() {
		return keystore.Decision{}, keystore.ErrUnavailable
	}
	return d, err
}
