// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/redis"
	"github.com/idempotency-dev/operator/internal/policy"
)

// prepareRedis looks at the servers, makes the keyspace or finds what it has lost, and tries the sidecar's connection string. A server that may lose
// entries gets its keyspace all the same, since sidecars do not tell lost entries from new ones without it. Connections are made for each pass.
func (r *Policies) prepareRedis(ctx context.Context, p *pass) (v1alpha1.StoreStatus, error) {
	status := v1alpha1.StoreStatus{Type: "Redis"}
	if before := p.status.Store; before != nil && before.Type == status.Type {
		status.Epoch = before.Epoch
	}
	admin, err := redis.OpenAdmin(p.adminDSN)
	if err != nil {
		return status, err
	}
	defer admin.Close()
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	spec, keyspace := p.policy.Spec.Store.Redis, policy.Keyspace(p.policy)
	health, risk := admin.Probe(ctx, r.Clock, int(spec.MinReplicas))
	status.Version = health.Version
	if risk != nil && !errors.Is(risk, keystore.ErrEvictionPossible) && !errors.Is(risk, keystore.ErrPersistenceOff) {
		return status, risk
	}
	found, err := admin.EnsureKeyspace(ctx, redis.Wanted{Name: keyspace, Claim: r.claim(p.policy), ID: status.Epoch, Window: longestWindow(p.policy)})
	if err != nil {
		return status, err
	}
	status.Epoch = found.ID
	sidecar, err := redis.Open(redis.Config{DSN: p.dsn, Keyspace: keyspace, MinReplicas: int(spec.MinReplicas)})
	if err != nil {
		return status, &sidecarError{err}
	}
	defer sidecar.Close()
	if err := sidecar.Check(ctx); err != nil {
		return status, &sidecarError{err}
	}
	if !found.Doubt.IsZero() {
		return status, fmt.Errorf("%w: until %s a key that is absent counts as unknown", keystore.ErrDataLost, found.Doubt.UTC().Format(time.RFC3339))
	}
	return status, risk
}

// longestWindow is that of the policy's entries.
func longestWindow(p *v1alpha1.IdempotencyPolicy) time.Duration {
	longest, _ := p.Spec.Retention.Window.Parse() // Validate has parsed them all
	for _, route := range p.Spec.Routes {
		if window, err := route.Window.Parse(); err == nil {
			longest = max(longest, window)
		}
	}
	return longest
}

// dropRedis drops the keyspace, or returns why it stays.
func (r *Policies) dropRedis(ctx context.Context, p *pass) (kept string, err error) {
	dsns, err := r.Stores.DSNs(ctx, p.policy.Namespace, policy.AdminDSN(p.policy))
	var missing *SecretError
	switch {
	case errors.As(err, &missing):
		return "its Secret is gone: " + missing.Message, nil
	case err != nil:
		return "", err
	}
	admin, err := redis.OpenAdmin(dsns[0])
	if err != nil {
		return "", err
	}
	defer admin.Close()
	err = admin.DropKeyspace(ctx, policy.Keyspace(p.policy), r.claim(p.policy))
	if errors.Is(err, keystore.ErrKeyspaceTaken) {
		return "it belongs to another policy", nil
	}
	return "", err
}
