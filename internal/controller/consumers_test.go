// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
	"github.com/idempotency-dev/operator/internal/retention"
)

// deliver delivers a message to consumer of keyspace, in a transaction of its own.
func (w *world) deliver(keyspace, consumer, id string) (first bool, err error) {
	w.t.Helper()
	conn := pgtest.Connect(w.t, w.database)
	defer func() { _ = conn.Close(w.t.Context()) }()
	err = conn.QueryRow(w.t.Context(), "SELECT idempotency.first_delivery($1, $2, $3)", keyspace, consumer, id).Scan(&first)
	return first, err
}

// consumersAre waits until the status says so many, with partitions for so many days ahead.
func (w *world) consumersAre(name string, declared, ahead int32) {
	w.t.Helper()
	eventually(w.t, func() error {
		p, err := w.get(name)
		if err != nil {
			return err
		}
		if s := p.Status.Consumers; s == nil || s.Declared != declared || s.Partitions == nil || s.Partitions.Count != ahead+1 || s.Partitions.RunwayUntil == nil {
			return fmt.Errorf("status.consumers is %+v", s)
		}
		return nil
	})
}

// TestConsumers declares consumers, changes them, and removes them: what they have taken is remembered, and maintained. It goes with the policy.
func TestConsumers(t *testing.T) {
	t.Parallel()
	w := newWholeWorld(t)
	keyspace := w.namespace + ".payments"
	p := w.ready("payments", func(p *v1alpha1.IdempotencyPolicy) {
		dropping(p)
		p.Spec.Retention.CreateAhead = 2
	})
	if p, err := w.get("payments"); err != nil || p.Status.Consumers != nil {
		t.Errorf("status.consumers is %+v without any, %v", p.Status.Consumers, err)
	}
	if have := w.keyspaces(); !slices.Equal(have, []string{keyspace}) {
		t.Errorf("keyspaces %v without consumers", have)
	}

	w.edit(p, `{"spec": {"consumers": [{"name": "orders", "window": "7d"}, {"name": "audit", "window": "30d"}]}}`)
	w.consumersAre("payments", 2, 2)
	w.await("payments", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	for _, first := range []bool{true, false} {
		if got, err := w.deliver(keyspace, "orders", "m"); got != first || err != nil {
			t.Errorf("first is %t, %v, want %t", got, err, first)
		}
	}
	w.window(keyspace, "orders", "168:00:00")

	w.edit(p, `{"spec": {"consumers": [{"name": "orders", "window": "1h"}]}}`)
	w.consumersAre("payments", 1, 2)
	w.window(keyspace, "orders", "01:00:00")
	w.window(keyspace, "audit", "720:00:00")
	w.edit(p, `{"spec": {"consumers": [{"name": "orders", "window": "7d"}]}}`)
	w.window(keyspace, "orders", "168:00:00")

	w.edit(p, `{"spec": {"consumers": null, "retention": {"createAhead": 4}}}`)
	w.consumersAre("payments", 0, 4)
	if first, err := w.deliver(keyspace, "orders", "m"); first || err != nil {
		t.Errorf("a consumer that was removed has forgotten: first is %t, %v", first, err)
	}

	w.remove(p)
	w.awaitGone("payments")
	if have := w.keyspaces(); len(have) > 0 {
		t.Errorf("keyspaces %v are still there", have)
	}
}

// window waits until the consumer's is what PostgreSQL writes so.
func (w *world) window(keyspace, consumer, want string) {
	w.t.Helper()
	conn := pgtest.Connect(w.t, w.database)
	defer func() { _ = conn.Close(w.t.Context()) }()
	eventually(w.t, func() error {
		var got string
		err := conn.QueryRow(w.t.Context(), "SELECT lifetime::text FROM idempotency.consumers WHERE keyspace = $1 AND name = $2",
			postgres.ConsumersOf(keyspace), consumer).Scan(&got)
		if errors.Is(err, pgx.ErrNoRows) || err == nil && got != want {
			return fmt.Errorf("window of %s is %q, want %q", consumer, got, want)
		}
		return err
	})
}

// TestConsumersProblems: what is wrong with partitions of deliveries is the policy's.
func TestConsumersProblems(t *testing.T) {
	day := retention.Day
	main := retention.Report{Count: 8, Problems: []retention.Problem{{Reason: retention.ReasonPendingDetach}}, Created: []string{"a"}, Overdue: 1}
	main.RunwayUntil = main.Now.Add(8 * day)
	of := retention.Report{Count: 3, Problems: []retention.Problem{{Reason: retention.ReasonRunwayShort}}, Created: []string{"b"}, Overdue: 1}
	of.RunwayUntil = of.Now.Add(3 * day)
	got := joined(main, of)
	if got.Ready() || len(got.Problems) != 2 || got.Overdue != 2 || !slices.Equal(got.Created, []string{"a", "b"}) || got.Count != 8 || got.RunwayUntil != of.RunwayUntil {
		t.Errorf("joined: %+v", got)
	}
}
