// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/retention"
)

// The key store in use by many, while its clock leaps through months and passes make and drop partitions as fast as they can: what was completed
// is replayed as long as its window lasts, what a live holder has reserved stays reserved however long, and its completion is taken.
func TestStoreUnderRetention(t *testing.T) {
	d := newDatabase(t)
	d.at(day(0))
	d.maintain(retention.Settings{CreateAhead: 3})
	ctx, cancel := context.WithCancel(context.Background())
	var workers, passes sync.WaitGroup
	w := &world{t: t, d: d}
	for i := range 6 {
		workers.Go(func() { w.client(ctx, i) })
	}
	passes.Go(func() { w.maintain(ctx) })
	workers.Wait()
	cancel()
	passes.Wait()
	t.Logf("%d entries, %d replays, %d long reservations, %d refusals, %d partitions dropped in %d passes",
		w.entries.Load(), w.replays.Load(), w.long.Load(), w.unavailable.Load(), w.dropped.Load(), w.passes.Load())
	if w.replays.Load() == 0 || w.long.Load() == 0 || w.dropped.Load() < enough {
		t.Error("too little has happened to show anything")
	}
	if w.unavailable.Load() > w.entries.Load()/20 {
		t.Error("more than one call in twenty was refused")
	}
}

// enough drops for the test to have shown something.
const enough = 20

type world struct {
	t *testing.T
	d *database

	entries, replays, long, unavailable, dropped, passes atomic.Int64
}

// maintain leaps and passes until ctx ends.
func (w *world) maintain(ctx context.Context) {
	random := rand.New(rand.NewPCG(1, 1))
	now := day(0)
	for ctx.Err() == nil {
		now = now.Add(time.Hour + time.Duration(random.Int64N(int64(30*time.Hour))))
		w.d.at(now)
		report, err := retention.Run(context.Background(), w.d, retention.Settings{CreateAhead: 1 + random.IntN(3)}, w.d.clock)
		if err != nil {
			w.t.Errorf("pass: %v", err)
			return
		}
		w.passes.Add(1)
		w.dropped.Add(int64(len(report.Dropped)))
	}
}

// now is the database's clock.
func (w *world) now() time.Time {
	return one[time.Time](w.d, "SELECT idempotency.now_()")
}

// done is a completed request, and until when it is honoured at least.
type done struct {
	key   string
	until time.Time
}

// client is a proxy whose holder never dies, and a second one that repeats its requests.
func (w *world) client(ctx context.Context, id int) {
	store, err := postgres.Open(ctx, postgres.Config{DSN: w.d.dsn, Keyspace: keyspace, MaxConns: 2, Timeout: 30 * time.Second})
	if err != nil {
		w.t.Error(err)
		return
	}
	defer store.Close()
	random := rand.New(rand.NewPCG(uint64(id), 2))
	holder := keystore.NewHolder()
	windows := []time.Duration{time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour, 72 * time.Hour}
	var answered []done
	var open []keystore.Reservation
	for n := 0; n < 100 || w.dropped.Load() < enough && n < 1500; n++ {
		r := keystore.Reservation{
			Client: "c", Key: fmt.Sprintf("%d.%d", id, n), Token: keystore.NewToken(), Holder: holder, Lease: 50000 * time.Hour,
			Window: windows[random.IntN(len(windows))], Route: "r",
		}
		if !w.reserve(ctx, store, r, keystore.New) {
			continue
		}
		w.entries.Add(1)
		if random.IntN(5) == 0 {
			open = append(open, r)
		} else if until, ok := w.complete(ctx, store, r); ok {
			answered = append(answered, done{r.Key, until})
		}
		if len(answered) > 0 {
			w.replay(ctx, store, r, answered[random.IntN(len(answered))])
		}
		if len(open) > 2 {
			w.finish(ctx, store, open[0], &answered)
			open = open[1:]
		}
	}
}

// finish checks that a reservation of old is still held, and completes it.
func (w *world) finish(ctx context.Context, store *postgres.Store, r keystore.Reservation, answered *[]done) {
	other := r
	other.Token, other.Holder = keystore.NewToken(), keystore.NewHolder()
	if !w.reserve(ctx, store, other, keystore.InFlight) {
		return
	}
	w.long.Add(1)
	if until, ok := w.complete(ctx, store, r); ok {
		*answered = append(*answered, done{r.Key, until})
	}
}

// reserve wants an outcome. A call that is refused decides nothing.
func (w *world) reserve(ctx context.Context, store *postgres.Store, r keystore.Reservation, want keystore.Outcome) bool {
	got, err := store.Reserve(ctx, r)
	if errors.Is(err, keystore.ErrUnavailable) {
		w.unavailable.Add(1)
		return false
	}
	if err != nil || got.Outcome != want {
		w.t.Errorf("reserve %s: outcome %d, %v; want %d", r.Key, got.Outcome, err, want)
		return false
	}
	return true
}

// complete returns until when the answer is honoured at least.
func (w *world) complete(ctx context.Context, store *postgres.Store, r keystore.Reservation) (time.Time, bool) {
	before := w.now()
	err := store.Complete(ctx, keystore.Ownership{Client: r.Client, Key: r.Key, Token: r.Token}, keystore.Answer{Status: 201, Body: []byte(r.Key)})
	if errors.Is(err, keystore.ErrUnavailable) {
		w.unavailable.Add(1)
		return time.Time{}, false
	}
	if err != nil {
		w.t.Errorf("complete %s: %v", r.Key, err)
	}
	return before.Add(r.Window), err == nil
}

// replay repeats a completed request. While its window lasts it has to be answered from the record.
func (w *world) replay(ctx context.Context, store *postgres.Store, like keystore.Reservation, d done) {
	like.Key, like.Token, like.Window = d.key, keystore.NewToken(), time.Minute
	like.Holder, like.Lease = keystore.NewHolder(), time.Second // should it be new, nobody will complete it
	got, err := store.Reserve(ctx, like)
	if errors.Is(err, keystore.ErrUnavailable) {
		w.unavailable.Add(1)
		return
	}
	if w.now().After(d.until) {
		return // it may have been absent already
	}
	w.replays.Add(1)
	if err != nil || got.Outcome != keystore.Completed || string(got.Answer.Body) != d.key {
		w.t.Errorf("repeat %s, honoured until %s: outcome %d, %v", d.key, d.until, got.Outcome, err)
	}
}
