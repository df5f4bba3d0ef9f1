// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// chaosStore fails one call in five: before it takes effect, or after.
type chaosStore struct {
	*memStore
	mu   sync.Mutex
	dice *rand.Rand
}

func (s *chaosStore) roll(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dice.IntN(n)
}

func (s *chaosStore) chaos(call func() error) error {
	roll := s.roll(10)
	if roll == 0 {
		return keystore.ErrUnavailable
	}
	err := call()
	if roll == 1 {
		return keystore.ErrUnavailable
	}
	return err
}

func (s *chaosStore) Reserve(ctx context.Context, r keystore.Reservation) (d keystore.Decision, err error) {
	err = s.chaos(func() (err error) { d, err = s.memStore.Reserve(ctx, r); return err })
	return d, err
}

func (s *chaosStore) Complete(ctx context.Context, o keystore.Ownership, a keystore.Answer) error {
	return s.chaos(func() error { return s.memStore.Complete(ctx, o, a) })
}

func (s *chaosStore) Release(ctx context.Context, o keystore.Ownership) error {
	return s.chaos(func() error { return s.memStore.Release(ctx, o) })
}

func (s *chaosStore) MarkUnknown(ctx context.Context, o keystore.Ownership) error {
	return s.chaos(func() error { return s.memStore.MarkUnknown(ctx, o) })
}

// ledger is an app's effects by key.
type ledger struct {
	mu      sync.Mutex
	effects map[string]int
	next    int
}

// book has an effect and returns its number.
func (l *ledger) book(key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.effects[key]++
	l.next++
	return l.next
}

// TestChaos: whatever the store, the app and the disk's journal go through, no key has two effects and no client sees two answers.
func TestChaos(t *testing.T) {
	for _, seed := range []uint64{1, 2, uint64(time.Now().UnixNano())} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { chaos(t, seed) })
	}
}

func chaos(t *testing.T, seed uint64) {
	book := &ledger{effects: map[string]int{}}
	store := &chaosStore{memStore: newMemStore(), dice: rand.New(rand.NewPCG(seed, 0))}
	r := start(t, func(s *setup) {
		s.store = store
		s.app = func(w http.ResponseWriter, req *http.Request) { chaoticApp(w, req, book, store.roll(10)) }
	})
	const clients, keys, attempts = 8, 12, 6
	var mu sync.Mutex
	answers := map[string]map[string]bool{}
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for i := range keys * attempts {
				key := fmt.Sprint("k", i%keys)
				got, err := r.try("POST", "/payments", key, `{}`)
				if err != nil || got.Err != nil || got.Status != http.StatusCreated {
					continue
				}
				mu.Lock()
				if answers[key] == nil {
					answers[key] = map[string]bool{}
				}
				answers[key][got.Body] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	eventually(t, "the journal lands", func() bool { n, _, _ := r.proxy.settler.journal.size(); return n == 0 })
	for key, n := range book.effects {
		if n > 1 {
			t.Errorf("%s had %d effects", key, n)
		}
	}
	for key, bodies := range answers {
		if len(bodies) != 1 || book.effects[key] != 1 {
			t.Errorf("%s was answered %v, with %d effects", key, bodies, book.effects[key])
		}
	}
	if len(answers) == 0 {
		t.Error("nothing succeeded at all")
	}
}

// chaoticApp refuses, or has its effect and answers, or breaks off before or after the effect.
func chaoticApp(w http.ResponseWriter, req *http.Request, book *ledger, roll int) {
	key := req.Header.Get("Idempotency-Key")
	switch roll {
	case 0, 1:
		w.WriteHeader(http.StatusServiceUnavailable)
	case 2:
		panic(http.ErrAbortHandler)
	case 3:
		book.book(key)
		panic(http.ErrAbortHandler)
	case 4:
		w.Header().Set("Content-Length", "100")
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprint(w, book.book(key))
	default:
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprint(w, book.book(key))
	}
}
