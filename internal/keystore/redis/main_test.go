// SPDX-License-Identifier: Apache-2.0

package redis_test

import (
	"testing"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/keystoretest"
	"github.com/idempotency-dev/operator/internal/keystore/redis"
	"github.com/idempotency-dev/operator/internal/localredis"
	"github.com/idempotency-dev/operator/internal/localredis/redistest"
)

// keyspaceName of the tests has what would be read as something else in a key, or in a pattern.
const keyspaceName = "Shop.payments-{\"eu\"}*"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ensure makes the keyspace as the operator does.
func ensure(t testing.TB, dsn, id string) redis.Found {
	t.Helper()
	admin, err := redis.OpenAdmin(dsn)
	must(t, err)
	defer admin.Close()
	found, err := admin.EnsureKeyspace(t.Context(), redis.Wanted{Name: keyspaceName, ID: id, Window: 24 * time.Hour})
	must(t, err)
	return found
}

func open(t testing.TB, c redis.Config) *redis.Store {
	t.Helper()
	c.Keyspace = keyspaceName
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	s, err := redis.Open(c)
	must(t, err)
	t.Cleanup(s.Close)
	return s
}

// TestConformance: on one server.
func TestConformance(t *testing.T) {
	keystoretest.Run(t, func(t *testing.T) keystoretest.Harness {
		server := redistest.Start(t, localredis.Options{Now: keystoretest.Start()})
		ensure(t, "redis://"+server.Addr(), "")
		return keystoretest.Harness{
			Addr:     server.Addr(),
			Open:     func(t testing.TB, addr string) keystore.Store { return open(t, redis.Config{DSN: "redis://" + addr}) },
			SetClock: func(t testing.TB, now time.Time) { must(t, server.SetClock(now)) },
		}
	})
}
