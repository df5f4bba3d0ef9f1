// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
)

// crash is where an attempt of an app dies.
type crash int

const (
	beforeEffect crash = iota
	afterEffect
	afterComplete
	inCommit
	afterCommit
	never
)

// attempt executes r as the app and its proxy do, and dies at the given point, by the end of its session or of its connection. A proxy that hears
// nothing marks the outcome unknown, and so may one whose time is over while the transaction goes on.
func (s *shop) attempt(r keystore.Reservation, level pgx.TxIsoLevel, at crash, impatient bool) error {
	ctx := context.Background()
	conn := pgtest.Connect(s.TB, s.dsn)
	defer func() { _ = conn.Close(ctx) }()
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
	if err != nil {
		return err
	}
	die := func(here crash) {
		if here != at {
			return
		}
		if rand.N(2) == 0 {
			_ = conn.PgConn().Conn().Close()
			return
		}
		pgtest.Exec(s.TB, s.database.dsn, "SELECT pg_terminate_backend($1)", conn.PgConn().PID())
	}
	die(beforeEffect)
	if _, err := tx.Exec(ctx, "INSERT INTO payments VALUES ($1)", r.Key); err != nil {
		return err
	}
	die(afterEffect)
	if impatient {
		if err := s.store.MarkUnknown(ctx, ownership(r)); err != nil && !errors.Is(err, keystore.ErrNotOwner) {
			return err
		}
	}
	if err := complete(tx, r, r.Key); err != nil {
		return err
	}
	die(afterComplete)
	if at == inCommit {
		go die(inCommit)
	}
	err = tx.Commit(ctx)
	die(afterCommit)
	return err
}

// TestOneEffectWhereverTheAppDies: every key is retried, by several callers at once, until its answer is recorded. Attempts die at every point, are given
// up while they go on, and are taken over. In the end each key has one effect: the one whose answer is replayed.
func TestOneEffectWhereverTheAppDies(t *testing.T) {
	s := newShop(t)
	const keys, callers = 60, 3
	var group sync.WaitGroup
	turns := make(chan struct{}, 12)
	for key := range keys {
		for caller := range callers {
			group.Go(func() {
				for n := 0; ; n++ {
					turns <- struct{}{}
					done := s.retry(fmt.Sprint("k", key), levels()[key%3], crash((key+caller+n)%int(never+1)), n < 8)
					<-turns
					if done {
						return
					}
				}
			})
		}
	}
	group.Wait()
	for key := range keys {
		s.payments(fmt.Sprint("k", key), 1)
	}
}

// retry is one request. It says whether the key is completed.
func (s *shop) retry(key string, level pgx.TxIsoLevel, at crash, faulty bool) bool {
	r := reservation(key)
	r.TakeOver = true
	d, err := s.store.Reserve(context.Background(), r)
	if err != nil || d.Outcome != keystore.New && d.Outcome != keystore.TakenOver {
		return err == nil && d.Outcome == keystore.Completed
	}
	if !faulty {
		at = never
	}
	if err := s.attempt(r, level, at, faulty && rand.N(4) == 0); err != nil {
		// What the proxy does when the app's connection breaks; when the store does not take it, the journal repeats it.
		for {
			if err := s.store.MarkUnknown(context.Background(), ownership(r)); err == nil || errors.Is(err, keystore.ErrNotOwner) {
				break
			}
		}
	}
	return false
}
