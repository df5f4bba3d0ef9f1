// SPDX-License-Identifier: Apache-2.0

package redis_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/keystoretest"
	"github.com/idempotency-dev/operator/internal/keystore/redis"
	"github.com/idempotency-dev/operator/internal/localredis"
	"github.com/idempotency-dev/operator/internal/localredis/redistest"
)

// patient lets no server seem dead to the others because their clocks have been moved.
func patient() map[string]string { return map[string]string{"cluster-node-timeout": "2000000000"} }

func clusterDSN(c *localredis.Cluster) string {
	return "redis://" + c.Servers[0].Addr() + "?cluster=true"
}

// TestConformanceOnCluster: on three primaries, whose clocks stand still together.
func TestConformanceOnCluster(t *testing.T) {
	keystoretest.Run(t, func(t *testing.T) keystoretest.Harness {
		c := redistest.StartCluster(t, localredis.ClusterOptions{Primaries: 3, Settings: patient(), Now: keystoretest.Start()})
		ensure(t, clusterDSN(c), "")
		var addrs []string
		for _, s := range c.Servers {
			addrs = append(addrs, s.Addr())
		}
		return keystoretest.Harness{
			Addr: strings.Join(addrs, ","),
			Open: func(t testing.TB, through string) keystore.Store {
				way := map[string]string{}
				for i, addr := range strings.Split(through, ",") {
					way[addrs[i]] = addr
				}
				s, err := redis.OpenBy(redis.Config{DSN: clusterDSN(c), Keyspace: keyspaceName, Timeout: 30 * time.Second},
					func(ctx context.Context, network, addr string) (net.Conn, error) {
						return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, way[addr])
					})
				must(t, err)
				t.Cleanup(s.Close)
				return s
			},
			SetClock: func(t testing.TB, now time.Time) { must(t, c.SetClock(now)) },
		}
	})
}
