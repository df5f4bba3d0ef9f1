// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/keystore/redis"
	"github.com/idempotency-dev/operator/internal/localredis"
	"github.com/idempotency-dev/operator/internal/localredis/redistest"
)

// redisPolicy keeps its entries at s.
func (w *world) redisPolicy(name string, s *localredis.Server, change func(*v1alpha1.IdempotencyPolicy)) {
	w.secret("redis", map[string]string{"dsn": "redis://" + s.Addr()})
	w.policy(name, func(p *v1alpha1.IdempotencyPolicy) {
		p.Spec.Store = v1alpha1.Store{Redis: &v1alpha1.RedisStore{DSNSecretRef: v1alpha1.SecretKeyRef{Name: "redis"}}}
		if change != nil {
			change(p)
		}
	})
}

func command(t *testing.T, s *localredis.Server, args ...any) {
	t.Helper()
	if err := s.Do(t.Context(), func(r *goredis.Client) error { return r.Do(context.Background(), args...).Err() }); err != nil {
		t.Fatal(err)
	}
}

// TestRedisPolicy: a policy with Redis becomes ready, its sidecars' store works, and its keyspace goes with it.
func TestRedisPolicy(t *testing.T) {
	t.Parallel()
	w := newWholeWorld(t)
	server := redistest.Start(t, localredis.Options{})
	w.redisPolicy("payments", server, func(p *v1alpha1.IdempotencyPolicy) { p.Spec.Retention.DeletionPolicy = v1alpha1.DeletionDelete })
	w.await("payments", v1alpha1.ConditionStoreHealthy, metav1.ConditionTrue, v1alpha1.ReasonHealthy)
	w.await("payments", v1alpha1.ConditionPartitionsReady, metav1.ConditionTrue, v1alpha1.ReasonNativeExpiry)
	w.await("payments", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	p, err := w.get("payments")
	if err != nil {
		t.Fatal(err)
	}
	if p.Status.Partitions != nil || p.Status.Store == nil || p.Status.Store.Type != "Redis" || p.Status.Store.Version == "" || p.Status.Store.Epoch == "" {
		t.Errorf("status: partitions %v, store %+v", p.Status.Partitions, p.Status.Store)
	}
	store, err := redis.Open(redis.Config{DSN: "redis://" + server.Addr(), Keyspace: w.namespace + ".payments"})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.Check(t.Context()); err != nil {
		t.Error(err)
	}
	w.remove(p)
	w.awaitGone("payments")
	var left int64
	if err := server.Do(t.Context(), func(r *goredis.Client) (err error) { left, err = r.DBSize(t.Context()).Result(); return err }); err != nil || left != 0 {
		t.Errorf("%d keys are left: %v", left, err)
	}
}

// TestRedisTroubles: what is wrong with the server is the condition's reason, and goes with what was wrong.
func TestRedisTroubles(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	server := redistest.Start(t, localredis.Options{})
	w.redisPolicy("payments", server, nil)
	healthy := func() {
		t.Helper()
		w.nudge("payments")
		w.await("payments", v1alpha1.ConditionStoreHealthy, metav1.ConditionTrue, v1alpha1.ReasonHealthy)
	}
	trouble := func(reason string) {
		t.Helper()
		w.nudge("payments")
		w.await("payments", v1alpha1.ConditionStoreHealthy, metav1.ConditionFalse, reason)
	}
	healthy()
	command(t, server, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	trouble(v1alpha1.ReasonEvictionPossible)
	command(t, server, "CONFIG", "SET", "maxmemory-policy", "noeviction")
	healthy()
	command(t, server, "CONFIG", "SET", "appendonly", "no")
	trouble(v1alpha1.ReasonPersistenceOff)
	server.Kill()
	trouble(v1alpha1.ReasonUnreachable)
	if err := server.Restart(t.Context(), map[string]string{"appendonly": "no"}); err != nil {
		t.Fatal(err)
	}
	trouble(v1alpha1.ReasonDataLost)
	w.secret("redis", map[string]string{"dsn": "redis://nobody:wrong@" + server.Addr()})
	trouble(v1alpha1.ReasonAuthFailed)
	w.secret("redis", map[string]string{"dsn": "rediss://" + server.Addr()})
	trouble(v1alpha1.ReasonUnreachable) // a server without TLS just closes
	w.secret("redis", map[string]string{"dsn": "postgres://" + server.Addr()})
	trouble(v1alpha1.ReasonDSNInvalid)
}

// TestRedisReplicasMissing: fewer replicas than the policy asks for.
func TestRedisReplicasMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.redisPolicy("payments", redistest.Start(t, localredis.Options{}), func(p *v1alpha1.IdempotencyPolicy) { p.Spec.Store.Redis.MinReplicas = 1 })
	w.await("payments", v1alpha1.ConditionStoreHealthy, metav1.ConditionFalse, v1alpha1.ReasonClusterDegraded)
}
