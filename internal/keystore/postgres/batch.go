// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// fewCalls of a kind cost the server less one by one than in a call of the function for many.
const fewCalls = 3

// send sends the calls of a batch in one transaction. Those that the server does not settle there, and all of them when the batch fails in a way that
// need not be theirs, are sent alone: every call may be repeated.
func (s *Store) send(seats []*seat) {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	err := s.sendBatch(ctx, seats)
	next := waiting
	if err != nil {
		if _, uncertain := s.judge(err); uncertain {
			next = repeating
		}
	}
	for _, seat := range seats {
		switch {
		case err == nil && seat.settled:
		case hopeless(ctx, err):
			seat.settled, seat.err = true, err
		default:
			seat.settled, seat.patience = false, next
		}
	}
}

// hopeless: no call will fare better by itself.
func hopeless(ctx context.Context, err error) bool {
	var connect *pgconn.ConnectError
	return err != nil && (ctx.Err() != nil || errors.As(err, &connect))
}

// sendBatch is one round trip, and one transaction.
func (s *Store) sendBatch(ctx context.Context, seats []*seat) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	messages := &pgx.Batch{}
	explicit := s.explicit.Load()
	if explicit {
		messages.Queue(begin)
	}
	s.queue(messages, seats)
	if explicit {
		messages.Queue("COMMIT")
	}
	err = conn.SendBatch(ctx, messages).Close()
	s.condemn(ctx, conn, err)
	return err
}

// queue writes the calls whose callers still wait for them: ends of attempts first, then the reservations, then the completions.
func (s *Store) queue(messages *pgx.Batch, seats []*seat) {
	var reserves reserveMany
	var completes completeMany
	for _, seat := range seats {
		if seat.hasLeft() {
			continue
		}
		switch c := seat.call.(type) {
		case *reserveCall:
			reserves.add(seat, c)
		case *completeCall:
			completes.add(seat, c)
		default:
			seat.queue(s, messages)
		}
	}
	for _, many := range []struct {
		seats []*seat
		queue func(*Store, *pgx.Batch)
	}{{reserves.seats, reserves.queue}, {completes.seats, completes.queue}} {
		if len(many.seats) > s.few {
			many.queue(s, messages)
			continue
		}
		for _, seat := range many.seats {
			seat.queue(s, messages)
		}
	}
}

func (s *seat) queue(store *Store, messages *pgx.Batch) {
	s.call.queue(store, messages, func() { s.settled = true })
}

// reserveMany is the reservations of a batch, as the function for many takes them. They all are of one holder.
type reserveMany struct {
	seats                 []*seat
	calls                 []*reserveCall
	clients, keys, routes []string
	fingerprints          [][]byte
	tokens                [][16]byte
	windows               []time.Duration
}

func (m *reserveMany) add(s *seat, c *reserveCall) {
	if len(m.calls) > 0 && (c.Holder != m.calls[0].Holder || c.Lease != m.calls[0].Lease) {
		return // it is not settled, and sent by itself
	}
	m.seats, m.calls = append(m.seats, s), append(m.calls, c)
	m.clients, m.keys, m.routes = append(m.clients, c.Client), append(m.keys, c.Key), append(m.routes, c.Route)
	m.fingerprints, m.tokens, m.windows = append(m.fingerprints, c.Fingerprint[:]), append(m.tokens, c.Token), append(m.windows, c.Window)
}

func (m *reserveMany) queue(s *Store, messages *pgx.Batch) {
	first := m.calls[0]
	messages.Queue(s.sql.reserveMany, m.clients, m.keys, m.fingerprints, m.tokens, [16]byte(first.Holder), first.Lease, m.windows, m.routes).
		Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var place int
				var d decision
				if err := rows.Scan(append([]any{&place}, d.fields()...)...); err != nil {
					return err
				}
				m.calls[place-1].answer, m.seats[place-1].settled = d, true
			}
			return rows.Err()
		})
}

// completeMany is the completions of a batch, as the function for many takes them.
type completeMany struct {
	seats           []*seat
	calls           []*completeCall
	clients, keys   []string
	tokens          [][16]byte
	tombstones      []*string
	statuses        []int
	headers, bodies [][]byte
}

func (m *completeMany) add(s *seat, c *completeCall) {
	m.seats, m.calls = append(m.seats, s), append(m.calls, c)
	m.clients, m.keys, m.tokens = append(m.clients, c.Client), append(m.keys, c.Key), append(m.tokens, c.Token)
	m.tombstones, m.statuses = append(m.tombstones, c.tombstone), append(m.statuses, c.status)
	m.headers, m.bodies = append(m.headers, c.header), append(m.bodies, c.body)
}

func (m *completeMany) queue(s *Store, messages *pgx.Batch) {
	messages.Queue(s.sql.completeMany, m.clients, m.keys, m.tokens, m.tombstones, m.statuses, m.headers, m.bodies).
		Query(func(rows pgx.Rows) error {
			owner := true
			for rows.Next() {
				var place int
				if err := rows.Scan(&place); err != nil {
					return err
				}
				m.calls[place-1].owner, m.seats[place-1].settled = &owner, true
			}
			return rows.Err()
		})
}
