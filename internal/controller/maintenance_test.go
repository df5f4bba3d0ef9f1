// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
	"github.com/idempotency-dev/operator/internal/policy"
	"github.com/idempotency-dev/operator/internal/retention"
)

// holding runs sql in a transaction that stays open until the test ends.
func (w *world) holding(sql string) {
	w.t.Helper()
	conn := pgtest.Connect(w.t, w.database)
	w.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(w.t.Context(), "BEGIN; "+sql); err != nil {
		w.t.Fatal(err)
	}
}

// expired makes a partition of five days ago, with nothing in it, and returns its name.
func (w *world) expired(p *v1alpha1.IdempotencyPolicy) string {
	w.t.Helper()
	admin, err := w.stores.Admin(w.t.Context(), p)
	if err != nil {
		w.t.Fatal(err)
	}
	keyspace, from := policy.Keyspace(p), time.Now().UTC().Truncate(retention.Day).AddDate(0, 0, -5)
	part := retention.Partition{Relation: retention.Name(postgres.Relation(keyspace), from), From: from, To: from.Add(retention.Day)}
	if _, err := admin.Catalogue(keyspace).Do(w.t.Context(), retention.Step{Action: retention.Create, Partition: part}); err != nil {
		w.t.Fatal(err)
	}
	return "idempotency." + part.Relation
}

// TestPartitionsReadyOnAServer makes a real server show what can be wrong with partitions, by what people do to it.
func TestPartitionsReadyOnAServer(t *testing.T) {
	for _, tt := range []struct {
		reason  string
		spoil   func(w *world, p *v1alpha1.IdempotencyPolicy, parent string)
		says    string
		because string
	}{
		{
			reason: v1alpha1.ReasonRunwayShort,
			spoil: func(w *world, _ *v1alpha1.IdempotencyPolicy, parent string) {
				w.holding("LOCK TABLE " + parent + " IN SHARE UPDATE EXCLUSIVE MODE")
			},
			says:    "and 1 more",
			because: "another session keeps partitions from being made",
		},
		{
			reason: v1alpha1.ReasonLockTimeout,
			spoil: func(w *world, p *v1alpha1.IdempotencyPolicy, _ string) {
				w.holding("LOCK TABLE " + w.expired(p) + " IN ROW EXCLUSIVE MODE")
			},
			says:    "another session holds a lock on it",
			because: "another session has written to a partition that is over, and has not ended",
		},
		{
			reason: v1alpha1.ReasonPendingDetach,
			spoil: func(w *world, p *v1alpha1.IdempotencyPolicy, parent string) {
				w.expired(p)
				w.holding("SELECT count(*) FROM " + parent)
			},
			says:    "a transaction that began earlier is still open",
			because: "somebody reads the table, and does not end",
		},
		{
			reason: v1alpha1.ReasonDefaultPartitionHasRows,
			spoil: func(w *world, _ *v1alpha1.IdempotencyPolicy, parent string) {
				w.exec("CREATE TABLE idempotency.rest PARTITION OF " + parent + " DEFAULT; ALTER TABLE idempotency.rest OWNER TO " + w.adminRole)
			},
			says:    "rest: a default partition keeps partitions from being dropped",
			because: "somebody made a default partition",
		},
		{
			reason: v1alpha1.ReasonBoundsMismatch,
			spoil: func(w *world, _ *v1alpha1.IdempotencyPolicy, parent string) {
				w.exec("CREATE TABLE idempotency.odd PARTITION OF " + parent + " FOR VALUES FROM ('2020-01-01+00') TO ('2020-01-03+00'); ALTER TABLE idempotency.odd OWNER TO " + w.adminRole)
			},
			says:    "odd: is left alone",
			because: "somebody made a partition of two days",
		},
		{
			reason: v1alpha1.ReasonMaintenanceFailed,
			spoil: func(w *world, _ *v1alpha1.IdempotencyPolicy, _ string) {
				w.exec("ALTER DATABASE " + w.databaseName() + " SET default_transaction_read_only = on; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '" + w.adminRole + "'")
			},
			because: "nothing can be written",
		},
	} {
		t.Run(tt.reason+": "+tt.because, func(t *testing.T) {
			t.Parallel()
			w := newWholeWorld(t)
			p := w.ready("payments", nil)
			tt.spoil(w, p, "idempotency."+postgres.Relation(policy.Keyspace(p)))
			w.edit(p, `{"spec":{"retention":{"createAhead":8}}}`)
			if message := w.await("payments", v1alpha1.ConditionPartitionsReady, metav1.ConditionFalse, tt.reason); !strings.Contains(message, tt.says) {
				t.Errorf("the message %q does not say %q", message, tt.says)
			}
		})
	}
}
