// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/policy"
	"github.com/idempotency-dev/operator/internal/retention"
)

// maintenanceInterval is how often a trial that goes on looks after its partitions.
const maintenanceInterval = 10 * time.Minute

// keeper does for one keyspace what the operator does in a cluster.
type keeper struct {
	admin    *postgres.Admin
	keyspace string
	settings retention.Settings
}

func newKeeper(ctx context.Context, dsn string, p *v1alpha1.IdempotencyPolicy) (*keeper, error) {
	admin, err := postgres.OpenAdmin(ctx, dsn, p.Spec.Store.Postgres.Schema)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	return &keeper{
		admin:    admin,
		keyspace: policy.Keyspace(p),
		settings: retention.Settings{CreateAhead: int(p.Spec.Retention.CreateAhead)},
	}, nil
}

func (k *keeper) close() { k.admin.Close() }

// prepare makes the schema, the keyspace and its partitions.
func (k *keeper) prepare(ctx context.Context, say func(string, ...any)) error {
	if err := k.admin.Migrate(ctx); err != nil {
		return fmt.Errorf("migrate schema: %w", err)
	}
	if err := k.admin.EnsureKeyspace(ctx, k.keyspace, ""); err != nil {
		return err
	}
	report, err := k.pass(ctx)
	if err != nil {
		return err
	}
	say("keyspace %s has %d daily partitions, %s to %s", k.keyspace, report.Count, report.Oldest.Format(time.DateOnly), report.Newest.Format(time.DateOnly))
	return nil
}

func (k *keeper) pass(ctx context.Context) (retention.Report, error) {
	report, err := retention.Run(ctx, k.admin.Catalogue(k.keyspace), k.settings, retention.SystemClock{})
	if err != nil {
		return report, fmt.Errorf("maintain partitions of %s: %w", k.keyspace, err)
	}
	return report, nil
}

// maintain looks after the partitions until ctx ends or the sidecar does. A pass that fails is said and tried again: partitions exist for days.
func (k *keeper) maintain(ctx context.Context, sidecar *sidecar, say func(string, ...any)) {
	tick := time.NewTicker(maintenanceInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-sidecar.ended:
			sidecar.ended <- err // for stop
			return
		case <-tick.C:
			if _, err := k.pass(ctx); err != nil && !errors.Is(err, retention.ErrLocked) {
				say("%v", err)
			}
		}
	}
}
