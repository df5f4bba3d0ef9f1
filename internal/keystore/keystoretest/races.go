// SPDX-License-Identifier: Apache-2.0

package keystoretest

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// callers of a race, spread over several stores.
const callers = 50

func (b *bench) stores(n int) []keystore.Store {
	stores := make([]keystore.Store, n)
	for i := range stores {
		stores[i] = b.Open(b.T, b.Addr)
		b.must(stores[i].Check(b.Context()))
	}
	return stores
}

// race sends one reservation of each caller at once and counts the outcomes.
func (b *bench) race(stores []keystore.Store, request func(caller int) keystore.Reservation) map[keystore.Outcome]int {
	b.Helper()
	outcomes := make([]keystore.Outcome, callers)
	errs := make([]error, callers)
	barrier := make(chan struct{})
	var group sync.WaitGroup
	for i := range callers {
		r := request(i)
		group.Go(func() {
			<-barrier
			var d keystore.Decision
			d, errs[i] = stores[i%len(stores)].Reserve(bounded(b.T), r)
			outcomes[i] = d.Outcome
		})
	}
	close(barrier)
	group.Wait()
	count := map[keystore.Outcome]int{}
	for i, o := range outcomes {
		b.must(errs[i])
		count[o]++
	}
	return count
}

// one wants one owner, and everybody else to find it in flight.
func (b *bench) one(owner keystore.Outcome, count map[keystore.Outcome]int) {
	b.Helper()
	if count[owner] != 1 || count[keystore.InFlight] != callers-1 {
		b.Errorf("%d × %s and %d × InFlight, want 1 and %d: %v", count[owner], name(owner), count[keystore.InFlight], callers-1, count)
	}
}

func raceOneKey(b *bench) {
	stores := b.stores(4)
	for round := range 10 {
		key := fmt.Sprint("key ", round)
		b.one(keystore.New, b.race(stores, func(int) keystore.Reservation { return b.request(key) }))
	}
}

func raceTakeOver(b *bench) {
	stores := b.stores(4)
	for round := range 10 {
		first := b.request(fmt.Sprint("key ", round))
		first.Holder = keystore.NewHolder()
		b.expect(first, keystore.New)
		b.must(b.store.Retire(b.Context(), first.Holder))
		b.one(keystore.TakenOver, b.race(stores, func(int) keystore.Reservation {
			r := b.request(first.Key)
			r.TakeOver = true
			return r
		}))
	}
}

// raceMidnight: the day changes while the callers of one key are on their way.
func raceMidnight(b *bench) {
	stores := b.stores(4)
	midnight := Start().Truncate(24 * time.Hour).Add(24 * time.Hour)
	b.must(b.store.KeepAlive(b.Context(), b.holder, 24*time.Hour)) // so that the lease is not what decides
	for round := range 40 {
		b.SetClock(b.T, midnight.Add(-time.Microsecond))
		key := fmt.Sprint("key ", round)
		var group sync.WaitGroup
		group.Go(func() { b.SetClock(b.T, midnight) })
		b.one(keystore.New, b.race(stores, func(int) keystore.Reservation { return b.request(key) }))
		group.Wait()
	}
}

// raceOwnership: whatever owners and strangers do to one key at once, never two own it, and an answer is the owner's.
func raceOwnership(b *bench) {
	const workers, rounds = 8, 40
	stores := b.stores(4)
	ctx := bounded(b.T)
	var owners, executed atomic.Int32
	var group sync.WaitGroup
	for w := range workers {
		store := stores[w%len(stores)]
		group.Go(func() {
			for range rounds {
				r := b.request("key")
				d, err := store.Reserve(ctx, r)
				if err != nil {
					b.Error(err)
					return
				}
				if d.Outcome != keystore.New {
					// A stranger's calls change nothing.
					_ = store.Release(ctx, owner(r))
					_ = store.Complete(ctx, owner(r), keystore.Answer{Status: http.StatusTeapot})
					continue
				}
				if owners.Add(1) != 1 {
					b.Error("two own the key")
				}
				executed.Add(1)
				owners.Add(-1)
				if err := store.Release(ctx, owner(r)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	group.Wait()
	if executed.Load() == 0 {
		b.Error("nobody ever owned the key")
	}
	d, err := b.store.Reserve(context.WithoutCancel(ctx), b.request("key"))
	b.must(err)
	if d.Outcome != keystore.New {
		b.Errorf("in the end: %s, want New", name(d.Outcome))
	}
}
