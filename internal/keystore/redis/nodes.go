// SPDX-License-Identifier: Apache-2.0

package redis

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// facts are lines of INFO, by name: https://redis.io/docs/latest/commands/info/
type facts map[string]string

func parseInfo(text string) facts {
	f := facts{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			f[name] = value
		}
	}
	return f
}

// info asks the server, or each server of the cluster, replicas too. A replica that does not answer is left out.
func (s *servers) info(ctx context.Context) ([]facts, error) {
	if s.cluster == nil {
		text, err := s.single.Info(ctx, "everything").Result()
		return []facts{parseInfo(text)}, err
	}
	var mu sync.Mutex
	var all []facts
	var errs []error
	ask := func(ctx context.Context, client *redis.Client) error {
		text, err := client.Info(ctx, "everything").Result()
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			errs = append(errs, err)
		} else {
			all = append(all, parseInfo(text))
		}
		return nil
	}
	if err := s.cluster.ForEachMaster(ctx, ask); err != nil {
		return nil, err
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	_ = s.cluster.ForEachSlave(ctx, ask) // see above
	return all, nil
}

// runs are the runs of every server that can be asked.
func (a *Admin) runs(ctx context.Context) ([]any, error) {
	all, err := a.info(ctx)
	if err != nil {
		return nil, err
	}
	var runs []any
	for _, f := range all {
		if run := f["run_id"]; run != "" && f["role"] == "slave" {
			runs = append(runs, run)
		}
	}
	return runs, nil
}
