// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
)

// perProxy is how many callers share a proxy's store and its four connections.
const perProxy = 8

// callers reserve and complete entries of their own until stopped.
type callers struct {
	cancel context.CancelFunc
	group  sync.WaitGroup
	stores []*postgres.Store

	mu   sync.Mutex
	seen []latency
	err  error
}

// latency of one pair of calls.
type latency struct {
	from time.Time
	took time.Duration
}

func (b *bench) call(ctx context.Context) (*callers, error) {
	ctx, cancel := context.WithCancel(ctx)
	c := &callers{cancel: cancel}
	for range (b.clients + perProxy - 1) / perProxy {
		store, err := postgres.Open(ctx, postgres.Config{DSN: b.dsn, Keyspace: retired})
		if err != nil {
			cancel()
			return nil, err
		}
		c.stores = append(c.stores, store)
	}
	for i, store := range c.stores {
		holder := keystore.NewHolder()
		for n := i * perProxy; n < min((i+1)*perProxy, b.clients); n++ {
			c.group.Go(func() { c.work(ctx, store, holder, fmt.Sprintf("caller-%d", n)) })
		}
	}
	return c, nil
}

// stop ends the calls and returns the first error among them.
func (c *callers) stop() error {
	c.cancel()
	c.group.Wait()
	for _, s := range c.stores {
		s.Close()
	}
	c.stores = nil
	return c.err
}

func (c *callers) work(ctx context.Context, store *postgres.Store, holder keystore.Holder, name string) {
	body := make([]byte, 512)
	for ctx.Err() == nil {
		start := time.Now()
		err := pair(ctx, store, name, holder, body)
		took := time.Since(start)
		c.mu.Lock()
		if err == nil {
			c.seen = append(c.seen, latency{start, took})
		} else if ctx.Err() == nil && c.err == nil {
			c.err = err
		}
		c.mu.Unlock()
	}
}

func pair(ctx context.Context, store *postgres.Store, name string, holder keystore.Holder, body []byte) error {
	token := keystore.NewToken()
	r := keystore.Reservation{
		Client: name, Key: token.String(), Token: token, Holder: holder, Lease: time.Minute, Window: 24 * time.Hour, Route: "create-payment",
	}
	d, err := store.Reserve(ctx, r)
	if err != nil {
		return err
	}
	if d.Outcome != keystore.New {
		return fmt.Errorf("reserve a new key: outcome %d", d.Outcome)
	}
	return store.Complete(ctx, keystore.Ownership{Client: name, Key: r.Key, Token: token}, keystore.Answer{Status: 201, Body: body})
}

// between returns the latencies of the calls that began between two instants.
func (c *callers) between(from, to time.Time) []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []time.Duration
	for _, l := range c.seen {
		if !l.from.Before(from) && l.from.Before(to) {
			all = append(all, l.took)
		}
	}
	return all
}

// percentiles returns both 99th percentiles, of enough samples each.
func percentiles(quiet, during []time.Duration) (time.Duration, time.Duration, error) {
	if len(quiet) < 500 || len(during) < 500 {
		return 0, 0, fmt.Errorf("too few samples: %d quiet, %d during the drop", len(quiet), len(during))
	}
	slices.Sort(quiet)
	slices.Sort(during)
	return quiet[len(quiet)*99/100], during[len(during)*99/100], nil
}
