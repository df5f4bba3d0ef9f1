// SPDX-License-Identifier: Apache-2.0

package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/redis"
	"github.com/idempotency-dev/operator/internal/localredis"
	"github.com/idempotency-dev/operator/internal/localredis/redistest"
)

// ledger is what callers were told under load.
type ledger struct {
	mu        sync.Mutex
	granted   map[string]int // by key: how often the right to execute was given
	completed map[string]int // acknowledged
	calls     int
	errs      []error // of those that failed
}

// load lets workers reserve each key twice, at two stores, and complete it, until stop ends.
func load(ctx context.Context, t *testing.T, stores ...keystore.Store) (*ledger, func()) {
	l := &ledger{granted: map[string]int{}, completed: map[string]int{}}
	ctx, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				l.one(t, fmt.Sprintf("%d of worker %d", i, worker), stores)
			}
		})
	}
	var once sync.Once
	end := func() { once.Do(func() { stop(); group.Wait() }) }
	t.Cleanup(end)
	return l, end
}

// one is one key: two requests at once.
func (l *ledger) one(t *testing.T, key string, stores []keystore.Store) {
	ctx := context.WithoutCancel(t.Context())
	var group sync.WaitGroup
	for i := range 2 {
		store := stores[i%len(stores)]
		group.Go(func() {
			r := request(key)
			r.Holder, r.Lease = keystore.Holder{byte(i)}, time.Minute
			d, err := store.Reserve(ctx, r)
			if err == nil && d.Outcome == keystore.New {
				l.note(&l.granted, key, nil)
				l.note(&l.completed, key, store.Complete(ctx, owner(r), created()))
				return
			}
			l.note(nil, "", err)
		})
	}
	group.Wait()
}

// note counts one call, and its key in counts if it succeeded.
func (l *ledger) note(counts *map[string]int, key string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	switch {
	case err != nil:
		l.errs = append(l.errs, err)
	case counts != nil:
		(*counts)[key]++
	}
}

// more waits until n more keys have been completed.
func (l *ledger) more(t *testing.T, n int) {
	t.Helper()
	l.mu.Lock()
	want := len(l.completed) + n
	l.mu.Unlock()
	until(t, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.completed) < want {
			return fmt.Errorf("%d keys completed, want %d; %d of %d calls failed", len(l.completed), want, len(l.errs), l.calls)
		}
		return nil
	})
}

// check asks for every key once more: nobody was given what another had, and what was acknowledged is there.
func (l *ledger) check(t *testing.T, s keystore.Store) {
	t.Helper()
	for key, n := range l.granted {
		if n != 1 {
			t.Errorf("key %s was granted %d times", key, n)
		}
		var d keystore.Decision
		until(t, func() (err error) { d, err = s.Reserve(t.Context(), request(key)); return err })
		if l.completed[key] > 0 && d.Outcome != keystore.Completed {
			t.Errorf("key %s: outcome %d after an acknowledged answer", key, d.Outcome)
		}
		if d.Outcome == keystore.New {
			t.Errorf("key %s is new again", key)
		}
	}
	t.Logf("%d keys, %d completed; %d of %d calls failed", len(l.granted), len(l.completed), len(l.errs), l.calls)
}

// TestPrimaryKilled: three primaries with a replica each, one primary killed under load. What was acknowledged with its replica's word is there,
// and what was given is not given again. The shard that is left without a replica takes nothing until it has one.
func TestPrimaryKilled(t *testing.T) {
	c := redistest.StartCluster(t, localredis.ClusterOptions{Primaries: 3, Replicas: 1, Settings: map[string]string{"cluster-node-timeout": "1000", "cluster-require-full-coverage": "no"}})
	ensure(t, clusterDSN(c), "")
	config := redis.Config{DSN: clusterDSN(c) + "&addr=" + c.Servers[1].Addr(), MinReplicas: 1, Timeout: 3 * time.Second}
	ledger, end := load(t.Context(), t, open(t, config), open(t, config))
	ledger.more(t, 200)
	c.Servers[2].Kill()
	until(t, func() error {
		if text, _ := do(t, c.Servers[5], "INFO", "replication").(string); !strings.Contains(text, "role:master") {
			return errors.New("the replica has not been promoted")
		}
		return nil
	})
	ledger.more(t, 50) // of the other shards, for now
	alone := config
	alone.MinReplicas = 0
	s := open(t, alone)
	until(t, func() error { return s.Check(t.Context()) })
	must(t, c.Servers[2].Restart(t.Context(), nil)) // as a replica, by the cluster's word
	strict := open(t, config)
	until(t, func() error { return strict.Check(t.Context()) })
	ledger.more(t, 200)
	end()
	ledger.check(t, s)
}

// TestSlotsMoved: slots move to another primary under load, with keys on both sides for a while. A key that is on neither side may be refused until
// its slot has arrived; nothing is granted twice.
func TestSlotsMoved(t *testing.T) {
	c := redistest.StartCluster(t, localredis.ClusterOptions{Primaries: 2, Spare: 1})
	ensure(t, clusterDSN(c), "")
	config := redis.Config{DSN: clusterDSN(c), Timeout: 300 * time.Millisecond}
	ledger, end := load(t.Context(), t, open(t, config), open(t, config))
	ledger.more(t, 200)
	moved := map[int]bool{}
	for i := 0; len(moved) < 4; i++ {
		slot, _, _ := redis.SlotOf(keyspaceName, "client", fmt.Sprint(i))
		if moved[slot] {
			continue
		}
		moved[slot] = true
		must(t, localredis.MoveSlot(t.Context(), slot, c.Servers[slot/8192], c.Servers[2], func() { ledger.anyCall(t) }))
	}
	until(t, func() error { return open(t, config).Check(t.Context()) })
	ledger.more(t, 200)
	end()
	config.Timeout = 0
	ledger.check(t, open(t, config))
	for _, err := range ledger.errs {
		if !errors.Is(err, keystore.ErrUnavailable) {
			t.Error(err)
		}
	}
}

// anyCall waits until some call has ended, so that there are calls while a slot is open on both sides.
func (l *ledger) anyCall(t *testing.T) {
	l.mu.Lock()
	before := l.calls
	l.mu.Unlock()
	until(t, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.calls <= before {
			return errors.New("no call ends")
		}
		return nil
	})
}

// TestSentinelFailover: the primary ends, sentinels promote its replica, and everything acknowledged is there.
func TestSentinelFailover(t *testing.T) {
	primary := redistest.Start(t, localredis.Options{})
	host, port, _ := strings.Cut(primary.Addr(), ":")
	var replicas []*localredis.Server
	for range 2 {
		replicas = append(replicas, redistest.Start(t, localredis.Options{Settings: map[string]string{"replicaof": host + " " + port}}))
	}
	for _, replica := range replicas {
		until(t, func() error {
			if text, _ := do(t, replica, "INFO", "replication").(string); !strings.Contains(text, "master_link_status:up") {
				return errors.New("replica is not in step")
			}
			return nil
		})
	}
	dsn := "redis://"
	var sentinels []*localredis.Server
	for range 3 {
		sentinels = append(sentinels, redistest.Start(t, localredis.Options{Sentinel: []string{
			"sentinel monitor main " + host + " " + port + " 2", "sentinel down-after-milliseconds main 500", "sentinel failover-timeout main 3000",
		}}))
	}
	for _, s := range sentinels {
		until(t, func() error {
			return s.Do(t.Context(), func(r *goredis.Client) error {
				quorum, err := r.Do(t.Context(), "SENTINEL", "ckquorum", "main").Text()
				if err != nil || !strings.HasPrefix(quorum, "OK 3") {
					return fmt.Errorf("%s: %w", quorum, err)
				}
				if known, err := r.Do(t.Context(), "SENTINEL", "replicas", "main").Slice(); err != nil || len(known) != 2 {
					return fmt.Errorf("sentinel knows %d replicas: %w", len(known), err)
				}
				return nil
			})
		})
	}
	dsn += sentinels[0].Addr() + "?master_name=main&addr=" + sentinels[1].Addr() + "&addr=" + sentinels[2].Addr()
	ensure(t, dsn, "")
	config := redis.Config{DSN: dsn, MinReplicas: 1, Timeout: 3 * time.Second}
	ledger, end := load(t.Context(), t, open(t, config), open(t, config))
	ledger.more(t, 200)
	primary.Kill()
	ledger.more(t, 200)
	end()
	ledger.check(t, open(t, config))
}
