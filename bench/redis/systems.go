// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/keystore/redis"
	"github.com/idempotency-dev/operator/internal/retention"
)

const (
	keyspace = "bench"
	window   = 24 * time.Hour
	lease    = 24 * time.Hour // longer than a run: renewing it is not what is measured
)

// ours is one sidecar's store, with its defaults.
type ours struct {
	store  keystore.Store
	holder keystore.Holder
}

func newOurs(ctx context.Context, store keystore.Store) (*ours, error) {
	o := &ours{store: store, holder: keystore.NewHolder()}
	return o, store.KeepAlive(ctx, o.holder, lease)
}

func newPostgres(ctx context.Context, dsn string) (*ours, error) {
	admin, err := postgres.OpenAdmin(ctx, dsn, "")
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	if err := admin.Migrate(ctx); err != nil {
		return nil, err
	}
	if err := admin.EnsureKeyspace(ctx, keyspace, ""); err != nil {
		return nil, err
	}
	if _, err := retention.Run(ctx, admin.Catalogue(keyspace), retention.Settings{CreateAhead: 7}, retention.SystemClock{}); err != nil {
		return nil, err
	}
	store, err := postgres.Open(ctx, postgres.Config{DSN: dsn, Keyspace: keyspace, Timeout: time.Minute})
	if err != nil {
		return nil, err
	}
	return newOurs(ctx, store)
}

func newRedis(ctx context.Context, dsn string) (*ours, error) {
	admin, err := redis.OpenAdmin(dsn)
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	if _, err := admin.EnsureKeyspace(ctx, redis.Wanted{Name: keyspace, Window: window}); err != nil {
		return nil, err
	}
	store, err := redis.Open(redis.Config{DSN: dsn, Keyspace: keyspace, Timeout: time.Minute})
	if err != nil {
		return nil, err
	}
	return newOurs(ctx, store)
}

func (o *ours) close() { o.store.Close() }

func (o *ours) pair(ctx context.Context, key string, answer []byte) error {
	r := keystore.Reservation{
		Client: "client", Key: key, Fingerprint: keystore.Fingerprint{1}, Token: keystore.NewToken(), Holder: o.holder, Lease: lease,
		Window: window, Route: "bench",
	}
	d, err := o.store.Reserve(ctx, r)
	if err != nil {
		return err
	}
	if d.Outcome != keystore.New {
		return fmt.Errorf("outcome %d of a new key", d.Outcome)
	}
	return o.store.Complete(ctx, keystore.Ownership{Client: r.Client, Key: key, Token: r.Token}, keystore.Answer{Status: 201, Body: answer})
}

// gofiber is what its middleware asks of gofiber/storage/redis for a new key, with its driver's defaults, and nothing of what else it does: GET, then GET
// again under a lock of the process, then SET. See middleware/idempotency/idempotency.go in gofiber/fiber v3.
type gofiber struct{ client *goredis.Client }

func newGofiber(addr string) *gofiber {
	return &gofiber{goredis.NewClient(&goredis.Options{Addr: addr})}
}

func (g *gofiber) close() { _ = g.client.Close() }

func (g *gofiber) pair(ctx context.Context, key string, answer []byte) error {
	for range 2 {
		if err := g.client.Get(ctx, key).Err(); !errors.Is(err, goredis.Nil) {
			return fmt.Errorf("a new key is known: %w", err)
		}
	}
	return g.client.Set(ctx, key, answer, window).Err()
}
