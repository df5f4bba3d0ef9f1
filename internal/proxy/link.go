// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
)

const probeInterval = 250 * time.Millisecond

// link is one open store: it says that this process is alive, and knows when the store is down, so that requests do not queue up for timeouts.
// It counts its users and closes the store behind the last one.
type link struct {
	store    keystore.Store
	identity string // of the store; empty: not known
	holder   keystore.Holder
	lease    time.Duration
	timeout  time.Duration
	metrics  *metrics
	log      *slog.Logger

	users   atomic.Int64
	suspect sync.Mutex   // one at a time asks whether the store is down
	answers atomic.Int64 // of the store to calls
	down    atomic.Bool
	failed  chan struct{} // wakes run
	stop    context.CancelFunc
	done    chan struct{}
}

// newLink opens a link with one user.
func newLink(store keystore.Store, identity string, holder keystore.Holder, limits Limits, m *metrics, log *slog.Logger) *link {
	ctx, stop := context.WithCancel(context.Background())
	l := &link{
		store: store, identity: identity, holder: holder, lease: limits.Lease, timeout: limits.StoreTimeout, metrics: m, log: log,
		failed: make(chan struct{}, 1), stop: stop, done: make(chan struct{}),
	}
	l.users.Store(1)
	go l.run(ctx)
	return l
}

// leave is the end of one use.
func (l *link) leave() {
	if l.users.Add(-1) == 0 {
		l.stop()
		<-l.done
		l.store.Close()
	}
}

// retire ends this process's lease, for good: nothing renews it any more.
func (l *link) retire(ctx context.Context) error {
	l.stop()
	<-l.done
	return l.store.Retire(ctx, l.holder)
}

// run renews the lease, and looks after a store that is down until it is up.
func (l *link) run(ctx context.Context) {
	defer close(l.done)
	renew := time.NewTicker(l.lease / 3)
	defer renew.Stop()
	probe := time.NewTicker(probeInterval)
	defer probe.Stop()
	l.renew(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-renew.C:
			l.renew(ctx)
		case <-l.failed:
			l.check(ctx)
		case <-probe.C:
			l.check(ctx)
		}
	}
}

// renew fails quietly but for the metric: a store that is down shows in every request.
func (l *link) renew(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, min(l.timeout, l.lease/3))
	defer cancel()
	if err := l.store.KeepAlive(ctx, l.holder, l.lease); err != nil && !errors.Is(err, context.Canceled) {
		l.metrics.storeErrors.WithLabelValues("keepalive").Inc()
	}
}

func (l *link) check(ctx context.Context) {
	if !l.down.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	if l.store.Check(ctx) == nil && l.store.KeepAlive(ctx, l.holder, l.lease) == nil {
		l.down.Store(false)
		l.log.Info("key store is reachable again")
	}
}

// errStoreBusy is for a call that failed or came to no end while the store answers others: that is no outage, in which PassThrough would let
// requests through unprotected.
var errStoreBusy = errors.New("store is busy or refuses this call")

// call makes one call and keeps what it says of the store.
func (l *link) call(ctx context.Context, operation string, call func(context.Context) error) error {
	before := l.answers.Load()
	err := call(ctx)
	if !errors.Is(err, keystore.ErrUnavailable) {
		l.answers.Add(1)
		return err
	}
	l.metrics.storeErrors.WithLabelValues(operation).Inc()
	if l.isUp(ctx, operation, before) {
		return fmt.Errorf("%w: %w", errStoreBusy, err)
	}
	return err
}

// isUp says whether the store is up all the same, after a call has failed; otherwise an outage has begun. A call that came to no end in its time while
// others were answered says no more than that the store, or our connections to it, have much to do. Any other may have been alone in its failure, one
// that waits for the lock of its entry among them: the store is asked.
func (l *link) isUp(ctx context.Context, operation string, before int64) bool {
	if ctx.Err() != nil && l.answers.Load() != before {
		return true
	}
	l.suspect.Lock()
	defer l.suspect.Unlock()
	if l.down.Load() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.timeout)
	defer cancel()
	if l.store.Check(ctx) == nil {
		return true
	}
	l.fail(operation)
	return false
}

// fail is the beginning of an outage.
func (l *link) fail(operation string) {
	if l.down.CompareAndSwap(false, true) {
		l.log.Error("key store is unreachable", "operation", operation)
		select {
		case l.failed <- struct{}{}:
		default:
		}
	}
}

// reserve asks for the right to execute. The store counts this process as alive for half of the lease at least when it gives that right.
// On an error doubtful says that a reservation may have been made all the same.
// A first failure is asked again with the same token: one broken connection is no outage.
func (l *link) reserve(ctx context.Context, r keystore.Reservation) (d keystore.Decision, doubtful bool, err error) {
	if l.down.Load() {
		return d, false, keystore.ErrUnavailable
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.timeout)
	defer cancel()
	defer l.metrics.observe(l.metrics.reserve, l.metrics.now())
	r.Holder, r.Lease = l.holder, l.lease
	err = l.call(ctx, "reserve", func(ctx context.Context) (err error) {
		d, err = l.store.Reserve(ctx, r)
		if first := err; first != nil && ctx.Err() == nil {
			d, err = l.store.Reserve(ctx, r)
			if err == nil && d.Outcome == keystore.InFlight && d.LeaseRemaining == 0 {
				return first // it may still be given what this request would never know of
			}
		}
		return err
	})
	return d, true, err
}

// deliver is do for a record of the journal: errRefused when the store is up and does not take it.
func (l *link) deliver(ctx context.Context, call func(context.Context) error) error {
	err := l.do(ctx, "journal", call)
	if errors.Is(err, errStoreBusy) && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	return err
}

// do calls the store with a time limit, unless it is known to be down. The caller's own end does not stop it.
func (l *link) do(ctx context.Context, operation string, call func(context.Context) error) error {
	if l.down.Load() {
		return keystore.ErrUnavailable
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.timeout)
	defer cancel()
	return l.call(ctx, operation, func(ctx context.Context) error {
		err := call(ctx)
		if err != nil && !errors.Is(err, keystore.ErrNotOwner) && !errors.Is(err, keystore.ErrUnavailable) {
			err = errors.Join(keystore.ErrUnavailable, err) // what a store does not name has not been done for sure
		}
		return err
	})
}
