// SPDX-License-Identifier: Apache-2.0

// Package postgres keeps entries in PostgreSQL, 15 or newer: a keyspace is a parent table with one partition for each UTC day, and a few functions,
// each of which is one transition of an entry. docs/spec/keystore.md describes them, and the roles.
package postgres

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-dev/operator/internal/keystore"
)

const (
	defaultSchema   = "idempotency"
	defaultMaxConns = 4
	defaultTimeout  = 5 * time.Second
	// idleTimeout and idleCheck close a connection that has not been used for at most 45 seconds.
	idleTimeout    = 30 * time.Second
	idleCheck      = 15 * time.Second
	connectTimeout = 5 * time.Second
)

// Config says where a keyspace is.
type Config struct {
	// DSN is a connection string of the sidecar's role, a URL or in keyword form.
	DSN string
	// Schema of the tables and functions. Empty: idempotency.
	Schema string
	// Keyspace that the operator has made.
	Keyspace string
	// MaxConns bounds the connections that are open at once. 0: 4.
	MaxConns int32
	// Timeout bounds every call, beside the caller's context. 0: 5 seconds.
	Timeout time.Duration
}

// Store is a keystore.Store on PostgreSQL. It connects when it is first used, and keeps no connection that is idle for a minute.
type Store struct {
	pool    *pgxpool.Pool
	timeout time.Duration
	sql     statements
	// pooler: somebody between us and the server gives every transaction another session, so that statements cannot be prepared by name.
	pooler atomic.Bool
	// explicit: the server's, the database's or the role's default isolation level is not ours, so that every transaction has to say it.
	explicit atomic.Bool
	lanes    lanes
	// attempts of a call: one more than there are connections, all of which may be broken.
	attempts int
	// slow bounds the calls outside the lanes, which may wait for somebody else's transaction.
	slow chan struct{}
	// few calls of a kind are sent one by one in a batch: fewCalls, but for tests.
	few int
}

var _ keystore.Store = (*Store)(nil)

// statements are the calls, with the names of schema and functions in them.
type statements struct {
	reserve, reserveMany, complete, completeMany, release, markUnknown, keepAlive, retire, check string
}

// Open prepares a store. It does not wait for the server, and fails only with keystore.ErrDSNInvalid.
func Open(ctx context.Context, c Config) (*Store, error) {
	config, err := parse(c.DSN)
	if err != nil {
		return nil, err
	}
	t := inKeyspace(orDefault(c.Schema, defaultSchema), c.Keyspace)
	s := &Store{
		timeout: orDefault(c.Timeout, defaultTimeout),
		sql: statements{
			reserve:      t.query("reserve"),
			reserveMany:  t.query("reserve_many"),
			complete:     t.query("complete"),
			completeMany: t.query("complete_many"),
			release:      t.query("release"),
			markUnknown:  t.query("mark_unknown"),
			keepAlive:    t.query("keep_alive"),
			retire:       t.query("retire"),
			check:        t.query("check"),
		},
	}
	config.MaxConns = orDefault(c.MaxConns, defaultMaxConns)
	s.attempts = int(config.MaxConns) + 1
	s.lanes = lanes{free: int(max(1, config.MaxConns/2)), send: s.send}
	s.slow, s.few = make(chan struct{}, max(1, config.MaxConns/4)), fewCalls
	config.ConnConfig.DialFunc = (&net.Dialer{Timeout: config.ConnConfig.ConnectTimeout, Control: sendFor(s.timeout)}).DialContext
	config.BeforeConnect = func(_ context.Context, conn *pgx.ConnConfig) error {
		if s.pooler.Load() {
			conn.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		}
		return nil
	}
	if s.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, keystore.ErrDSNInvalid // the pool's own limits, which a DSN may set, contradict each other
	}
	return s, nil
}

func orDefault[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// Reserve implements keystore.Store.
func (s *Store) Reserve(ctx context.Context, r keystore.Reservation) (keystore.Decision, error) {
	c := &reserveCall{Reservation: r}
	if err := s.travel(ctx, c); err != nil {
		return keystore.Decision{}, unavailable(ctx, "reserve", err)
	}
	return c.answer.decode()
}

// Complete implements keystore.Store.
func (s *Store) Complete(ctx context.Context, o keystore.Ownership, answer keystore.Answer) error {
	c, err := newCompleteCall(o, answer)
	if err != nil {
		return err
	}
	if err := s.travel(ctx, c); err != nil {
		return unavailable(ctx, "complete", err)
	}
	return owned(*c.owner)
}

// Release implements keystore.Store. When the answer to a first attempt was lost and the second finds nothing to release, the first has done it.
func (s *Store) Release(ctx context.Context, o keystore.Ownership) error {
	c := &endCall{Ownership: o, sql: s.sql.release}
	if err := s.travel(ctx, c); err != nil {
		return unavailable(ctx, "release", err)
	}
	return owned(*c.owner || c.repeated)
}

// MarkUnknown implements keystore.Store.
func (s *Store) MarkUnknown(ctx context.Context, o keystore.Ownership) error {
	c := &endCall{Ownership: o, sql: s.sql.markUnknown}
	if err := s.travel(ctx, c); err != nil {
		return unavailable(ctx, "mark unknown", err)
	}
	return owned(*c.owner)
}

func owned(owner bool) error {
	if !owner {
		return keystore.ErrNotOwner
	}
	return nil
}

// KeepAlive implements keystore.Store.
func (s *Store) KeepAlive(ctx context.Context, holder keystore.Holder, lease time.Duration) error {
	if _, err := s.call(ctx, s.sql.keepAlive, fixed([16]byte(holder), lease), nil); err != nil {
		return unavailable(ctx, "keep alive", err)
	}
	return nil
}

// Retire implements keystore.Store.
func (s *Store) Retire(ctx context.Context, holder keystore.Holder) error {
	if _, err := s.call(ctx, s.sql.retire, fixed([16]byte(holder)), nil); err != nil {
		return unavailable(ctx, "retire", err)
	}
	return nil
}

// Check implements keystore.Store.
func (s *Store) Check(ctx context.Context) error {
	if _, err := s.call(ctx, s.sql.check, fixed(), nil); err != nil {
		return unavailable(ctx, "check", err)
	}
	return nil
}

// Close implements keystore.Store.
func (s *Store) Close() { s.pool.Close() }
