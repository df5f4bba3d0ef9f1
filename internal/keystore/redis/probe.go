// SPDX-License-Identifier: Apache-2.0

package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// maxSkew between the clocks of operator and servers.
const maxSkew = 10 * time.Second

// Clock tells the caller's time.
type Clock interface{ Now() time.Time }

// Probe asks the servers how they are. It returns what it saw, even with an error that wraps the sentinel of what is wrong: of several things, the
// worst. The texts of its errors do not change from one probe to the next.
func (a *Admin) Probe(ctx context.Context, clock Clock, minReplicas int) (keystore.Health, error) {
	var health keystore.Health
	before := clock.Now()
	all, err := a.info(ctx)
	if err != nil {
		return health, cause(ctx, err)
	}
	middle := before.Add(clock.Now().Sub(before) / 2)
	health.Version, health.Now = all[0]["redis_version"], serverTime(all[0])
	if major, _, _ := strings.Cut(health.Version, "."); len(major) == 1 && major < "7" {
		return health, fmt.Errorf("%w: Redis 7.0 or newer is needed", keystore.ErrSchemaOutdated)
	}
	if a.cluster != nil {
		state, err := a.cluster.ClusterInfo(ctx).Result()
		if err != nil {
			return health, cause(ctx, err)
		}
		if f := parseInfo(state); f["cluster_state"] != "ok" || f["cluster_slots_ok"] != strconv.Itoa(slots) {
			return health, fmt.Errorf("%w: not every slot has a server", keystore.ErrClusterDegraded)
		}
	}
	return health, judgeServers(all, middle, minReplicas)
}

func judgeServers(all []facts, now time.Time, minReplicas int) error {
	var evicts, forgets bool
	for _, f := range all {
		evicts = evicts || f["maxmemory_policy"] != "noeviction"
		forgets = forgets || f["aof_enabled"] != "1"
		if f["role"] != "master" {
			continue
		}
		if serverTime(f).Sub(now).Abs() > maxSkew {
			return keystore.ErrClockSkew
		}
		if replicas, _ := strconv.Atoi(f["connected_slaves"]); replicas < minReplicas {
			return fmt.Errorf("%w: a primary has fewer replicas than minReplicas", keystore.ErrClusterDegraded)
		}
	}
	switch {
	case all[0]["role"] != "master":
		return keystore.ErrReadOnly
	case evicts:
		return keystore.ErrEvictionPossible
	case forgets:
		return keystore.ErrPersistenceOff
	}
	return nil
}

// serverTime is the server's clock while it answered.
func serverTime(f facts) time.Time {
	n, _ := strconv.ParseInt(f["server_time_usec"], 10, 64) // missing: 1970
	return time.UnixMicro(n)
}
