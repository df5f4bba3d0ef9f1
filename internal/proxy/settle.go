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
	// What was set aside is tried again after firstAside, and then less and less often.
	firstAside = time.Second
	lastAside  = 30 * time.Second
)

// settler brings results to the store: at once, or through the journal when the store does not take them.
type settler struct {
	journal *journal
	limit   int64
	metrics *metrics
	log     *slog.Logger
	aside   *time.Timer   // until what was set aside is tried again
	pause   time.Duration // as aside was set
}

func newSettler(j *journal, limit int64, m *metrics, log *slog.Logger) *settler {
	return &settler{journal: j, limit: limit, metrics: m, log: log, aside: time.NewTimer(firstAside), pause: firstAside}
}

// full reports whether results have piled up so far that no more may come to be.
func (s *settler) full() bool {
	return s.journal.waiting.Load() >= s.limit
}

// settle brings r to l's store, or to the journal. When both fail, and memory is full, the reservation stays, and is UNKNOWN once this process has
// ended: nothing is executed twice.
func (s *settler) settle(ctx context.Context, l *link, r *record) {
	if r.Op == opComplete {
		defer s.metrics.observe(s.metrics.complete, s.metrics.now())
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
	records, aside, bytes := s.journal.size()
	s.metrics.journal.Set(float64(records))
	s.metrics.journalAside.Set(float64(aside))
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
	defer s.aside.Stop()
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
			case <-s.aside.C:
				s.journal.reconsider()
				s.pause = min(2*s.pause, lastAside)
				s.aside.Reset(s.pause)
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

// flush delivers the journal until there is nothing more to deliver or ctx ends.
func (s *settler) flush(ctx context.Context, current func() *generation) {
	s.journal.reconsider()
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
			s.end("damaged")
			continue
		}
		if r == nil {
			return true, progress
		}
		g := current()
		end, err := s.offer(ctx, g, r)
		g.leave()
		switch {
		case errors.Is(err, errForeign), errors.Is(err, errRefused):
			s.setAside(r, err)
		case err != nil:
			return false, progress
		default:
			s.end(end)
		}
		progress = true
	}
	return false, progress
}

var (
	// errForeign: the record's reservation is in another store, or keyspace, than the one in use. That one may come back.
	errForeign = errors.New("it belongs to another key store than the one in use")
	// errRefused: the store takes other records, and not this one.
	errRefused = errors.New("the key store refuses it")
)

// offer brings r to the store in use and says how that ended; an error when it has to be tried again. Whether it is too late is the store's to say,
// and only that of the store where the reservation was made: another one, which may be the same by another name, can take r and cannot refuse it.
func (s *settler) offer(ctx context.Context, g *generation, r *record) (end string, err error) {
	if r.Keyspace != g.config.Keyspace {
		return "", errForeign
	}
	err = g.link.deliver(ctx, func(ctx context.Context) error { return apply(ctx, g.link.store, r) })
	switch {
	case !errors.Is(err, keystore.ErrNotOwner):
		return "delivered", err
	case r.Store != "" && r.Store != g.link.identity:
		return "", errForeign
	case r.Doubtful:
		return "needless", nil
	}
	s.lost(r)
	return "lost", nil
}

// setAside makes way for what is behind r, which waits for better days: a store that comes back, or is mended.
func (s *settler) setAside(r *record, why error) {
	first, dropped, err := s.journal.setAside()
	if first {
		s.log.Error("journal record is set aside", "operation", r.Op, "reason", why)
		if s.pause > firstAside {
			s.pause = firstAside
			s.aside.Reset(s.pause)
		}
	}
	for range dropped {
		s.metrics.journalEnds.WithLabelValues("dropped").Inc()
		s.log.Error("journal record that was set aside is dropped: there is no room for more")
	}
	s.shortened(err)
}

func (s *settler) end(how string) {
	s.metrics.journalEnds.WithLabelValues(how).Inc()
	s.shortened(s.journal.drop())
}

func (s *settler) shortened(err error) {
	if err != nil {
		s.log.Error("journal is not shortened", "error", err)
	}
}
