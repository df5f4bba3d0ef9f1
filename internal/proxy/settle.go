// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
)

const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// settler brings results to the store: at once, or through the journal when the store does not take them.
type settler struct {
	journal *journal
	limit   int64
	metrics *metrics
	log     *slog.Logger
}

// full reports whether results have piled up so far that no more may come to be.
func (s *settler) full() bool {
	return s.journal.waiting.Load() >= s.limit
}

// settle brings r to l's store, or to the journal. When both fail, and memory is full, the reservation stays, and is UNKNOWN once this process has
// ended: nothing is executed twice.
func (s *settler) settle(ctx context.Context, l *link, r *record) {
	if r.Op == opComplete {
		defer s.metrics.observe(s.metrics.complete)()
	}
	err := l.do(ctx, r.Op, func(ctx context.Context) error { return apply(ctx, l.store, r) })
	if errors.Is(err, keystore.ErrNotOwner) {
		s.lost(r)
		return
	}
	if err != nil {
		s.later(r)
	}
}

// later leaves r to the journal alone.
func (s *settler) later(r *record) {
	kept, err := s.journal.append(r)
	if err != nil {
		s.log.Error("journal takes no result", "operation", r.Op, "held", kept, "error", err)
	}
	if !kept {
		s.metrics.journalEnds.WithLabelValues("failed").Inc()
	}
	s.gauge()
}

func (s *settler) lost(r *record) {
	s.metrics.lost.Inc()
	s.log.Warn("reservation had ended before its result was recorded", "operation", r.Op)
}

func (s *settler) gauge() {
	records, bytes := s.journal.size()
	s.metrics.journal.Set(float64(records))
	s.metrics.journalBytes.Set(float64(bytes))
}

func apply(ctx context.Context, store keystore.Store, r *record) error {
	switch r.Op {
	case opComplete:
		return store.Complete(ctx, r.ownership(), *r.Answer)
	case opRelease:
		return store.Release(ctx, r.ownership())
	default:
		return store.MarkUnknown(ctx, r.ownership())
	}
}

// run delivers the journal, in order, until ctx ends. current is the generation in use, entered.
func (s *settler) run(ctx context.Context, current func() *generation) {
	wait := firstRetry
	for ctx.Err() == nil {
		delivered, progress := s.deliver(ctx, current)
		s.gauge()
		if progress {
			wait = firstRetry
		}
		if delivered {
			select {
			case <-ctx.Done():
			case <-s.journal.wake:
			}
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, lastRetry)
	}
}

// flush delivers the journal until it is empty or ctx ends.
func (s *settler) flush(ctx context.Context, current func() *generation) {
	for {
		if delivered, _ := s.deliver(ctx, current); delivered || ctx.Err() != nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(firstRetry):
		}
	}
}

// deliver brings record after record to the store and reports whether none is left, and whether any has gone.
func (s *settler) deliver(ctx context.Context, current func() *generation) (delivered, progress bool) {
	for ctx.Err() == nil {
		r, err := s.journal.oldest()
		if err != nil {
			s.log.Error("journal record is dropped", "error", err)
			s.end(nil, "damaged")
			continue
		}
		if r == nil {
			return true, progress
		}
		g := current()
		end, err := s.offer(ctx, g, r)
		g.leave()
		if err != nil {
			return false, progress
		}
		s.end(r, end)
		progress = true
	}
	return false, progress
}

// offer brings r to the store and says how that ended; an error when it has to be tried again. Whether it is too late is the store's to say.
func (s *settler) offer(ctx context.Context, g *generation, r *record) (string, error) {
	if r.Keyspace != g.config.Keyspace {
		s.log.Error("journal record is of another keyspace", "keyspace", r.Keyspace)
		return "foreign", nil
	}
	err := g.link.do(ctx, "journal", func(ctx context.Context) error { return apply(ctx, g.link.store, r) })
	if errors.Is(err, keystore.ErrNotOwner) {
		s.lost(r)
		return "lost", nil
	}
	return "delivered", err
}

func (s *settler) end(r *record, how string) {
	s.metrics.journalEnds.WithLabelValues(how).Inc()
	if err := s.journal.drop(r); err != nil {
		s.log.Error("journal is not shortened", "error", err)
	}
}
