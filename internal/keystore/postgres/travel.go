// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// patience says whether a call waits for the lock of its entry.
type patience int

const (
	// passing: it does not wait, so that nobody behind it does. It may have to be sent again.
	passing patience = iota
	// waiting: it waits where it has to.
	waiting
	// repeating: an earlier attempt may still be under way in the server. It waits for that before anything else.
	repeating
)

// traveller is a call that may go together with others, in one transaction.
type traveller interface {
	// bytes it carries, about.
	bytes() int
	// patience that the call needs from the start.
	patience() patience
	// alone sends the call by itself. settled: its outcome is known; it always is unless p is passing.
	alone(ctx context.Context, s *Store, p patience) (settled bool, err error)
	// queue adds the call to a pipeline, as alone with passing would send it. settle is called when its outcome is known.
	queue(s *Store, messages *pgx.Batch, settle func())
}

// travel sends t by itself where a lane is free, else together with others that wait. What has to wait for an entry's lock does so out of the lanes.
func (s *Store) travel(ctx context.Context, t traveller) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	p := t.patience()
	if p == passing {
		var settled bool
		var err error
		if settled, p, err = s.pass(ctx, t); settled || err != nil {
			return err
		}
	}
	select {
	case s.slow <- struct{}{}:
		defer func() { <-s.slow }()
	case <-ctx.Done():
		return ctx.Err()
	}
	_, err := t.alone(ctx, s, p)
	return err
}

// pass sends t down a lane. When that does not settle it, p is the patience with which it has to be sent by itself.
func (s *Store) pass(ctx context.Context, t traveller) (settled bool, p patience, err error) {
	seat, err := s.lanes.enter(ctx, t)
	if err != nil {
		return false, 0, err
	}
	if !seat.leads {
		return seat.settled, seat.patience, seat.err
	}
	defer s.lanes.leave()
	settled, err = t.alone(ctx, s, passing)
	return settled, waiting, err
}

// reserveCall is a reservation and, once it is settled, the answer.
type reserveCall struct {
	keystore.Reservation
	answer decision
}

func (c *reserveCall) bytes() int { return len(c.Client) + len(c.Key) }

func (c *reserveCall) patience() patience {
	if c.Repeated {
		return repeating
	}
	return passing
}

func (c *reserveCall) args(p patience, newest bool) []any {
	return []any{
		c.Client, c.Key, c.Fingerprint[:], [16]byte(c.Token), [16]byte(c.Holder), c.Lease, c.Window, c.Route, c.TakeOver, newest, int(p),
	}
}

func (c *reserveCall) alone(ctx context.Context, s *Store, p patience) (bool, error) {
	repeated, err := s.call(ctx, s.sql.reserve, func(repeated bool) []any { return c.args(p.after(repeated), false) }, c.answer.fields()...)
	if codeOf(err) == noPartition {
		repeated, err = s.call(ctx, s.sql.reserve, func(repeated bool) []any { return c.args(p.after(repeated), true) }, c.answer.fields()...)
	}
	if err == nil && (repeated || p == repeating) && c.answer.locked() {
		err = errLocked // the earlier attempt may be what holds the entry, or waits for it
	}
	return err == nil && c.answer.outcome != 0, err
}

func (p patience) after(repeated bool) patience {
	if repeated {
		return repeating
	}
	return p
}

func (c *reserveCall) queue(s *Store, messages *pgx.Batch, settle func()) {
	messages.Queue(s.sql.reserve, c.args(passing, false)...).QueryRow(func(row pgx.Row) error {
		err := row.Scan(c.answer.fields()...)
		if c.answer.outcome != 0 {
			settle()
		}
		return err
	})
}

// completeCall is a completion and, once it is settled, whether its caller owns the entry.
type completeCall struct {
	keystore.Ownership
	tombstone    *string
	status       int
	header, body []byte
	owner        *bool
}

func newCompleteCall(o keystore.Ownership, answer keystore.Answer) (*completeCall, error) {
	header, err := encodeHeader(answer.Header)
	c := &completeCall{Ownership: o, status: answer.Status, header: header, body: answer.Body}
	if answer.Tombstone != "" {
		c.tombstone = (*string)(&answer.Tombstone)
	}
	return c, err
}

func (c *completeCall) bytes() int { return len(c.Client) + len(c.Key) + len(c.header) + len(c.body) }

func (c *completeCall) patience() patience { return passing }

func (c *completeCall) args(p patience) []any {
	return []any{c.Client, c.Key, [16]byte(c.Token), c.tombstone, c.status, c.header, c.body, p != passing}
}

func (c *completeCall) alone(ctx context.Context, s *Store, p patience) (bool, error) {
	_, err := s.call(ctx, s.sql.complete, func(bool) []any { return c.args(p) }, &c.owner)
	if err == nil && c.owner == nil && p != passing {
		err = errLocked
	}
	return err == nil && c.owner != nil, err
}

func (c *completeCall) queue(s *Store, messages *pgx.Batch, settle func()) {
	messages.Queue(s.sql.complete, c.args(passing)...).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&c.owner)
		if c.owner != nil {
			settle()
		}
		return err
	})
}

// endCall is the end of an attempt without an answer and, once it is settled, whether its caller owns the entry.
type endCall struct {
	keystore.Ownership
	sql   string
	owner *bool
	// repeated: an earlier attempt of this call may have taken effect.
	repeated bool
}

func (c *endCall) bytes() int { return len(c.Client) + len(c.Key) }

func (c *endCall) patience() patience { return passing }

func (c *endCall) args(p patience) []any {
	return []any{c.Client, c.Key, [16]byte(c.Token), p != passing}
}

func (c *endCall) alone(ctx context.Context, s *Store, p patience) (bool, error) {
	again, err := s.call(ctx, c.sql, func(bool) []any { return c.args(p) }, &c.owner)
	c.repeated = c.repeated || again || p == repeating
	if err == nil && c.owner == nil && p != passing {
		err = errLocked
	}
	return err == nil && c.owner != nil, err
}

func (c *endCall) queue(_ *Store, messages *pgx.Batch, settle func()) {
	messages.Queue(c.sql, c.args(passing)...).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&c.owner)
		if c.owner != nil {
			settle()
		}
		return err
	})
}

// decision is the row that reserve returns. Its outcome is 0 when the call would have had to wait.
type decision struct {
	outcome               keystore.Outcome
	seed                  pgtype.UUID
	tombstone             *string
	status                *int
	header, body          []byte
	leaseRemaining, since *int64
}

func (d *decision) fields() []any {
	return []any{&d.outcome, &d.seed, &d.tombstone, &d.status, &d.header, &d.body, &d.leaseRemaining, &d.since}
}

// locked says that the decision was made without the entry's lock, since another transaction had it for too long.
func (d *decision) locked() bool { return d.outcome == keystore.InFlight && d.leaseRemaining == nil }

func (d *decision) decode() (keystore.Decision, error) {
	out := keystore.Decision{Outcome: d.outcome, Seed: d.seed.Bytes, LeaseRemaining: microseconds(d.leaseRemaining), Since: microseconds(d.since)}
	if d.outcome != keystore.Completed {
		return out, nil
	}
	header, err := decodeHeader(d.header)
	if err != nil {
		return keystore.Decision{}, fmt.Errorf("%w: read header: %w", keystore.ErrUnavailable, err)
	}
	out.Answer = &keystore.Answer{Header: header, Body: d.body}
	if d.tombstone != nil {
		out.Answer.Tombstone = keystore.Tombstone(*d.tombstone)
	}
	if d.status != nil {
		out.Answer.Status = *d.status
	}
	return out, nil
}

func microseconds(n *int64) time.Duration {
	if n == nil {
		return 0
	}
	return time.Duration(*n) * time.Microsecond
}
