// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
)

func dropping(p *v1alpha1.IdempotencyPolicy) {
	p.Spec.Retention.DeletionPolicy = v1alpha1.DeletionDelete
}

// ready makes a policy, changed by change, and waits until it is Ready.
func (w *world) ready(name string, change func(*v1alpha1.IdempotencyPolicy)) *v1alpha1.IdempotencyPolicy {
	w.t.Helper()
	p := w.policy(name, change)
	w.await(name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	return p
}

func (w *world) keeps(keyspace string) {
	w.t.Helper()
	if have := w.keyspaces(); !slices.Contains(have, keyspace) {
		w.t.Errorf("keyspace %s was dropped: there are %v", keyspace, have)
	}
}

// awaitEvent waits for an event with that reason in the namespace and returns its note.
func (w *world) awaitEvent(reason string) string {
	w.t.Helper()
	var note string
	eventually(w.t, func() error {
		events := &eventsv1.EventList{}
		if err := server.client.List(w.t.Context(), events, client.InNamespace(w.namespace)); err != nil {
			return err
		}
		for i := range events.Items {
			if events.Items[i].Reason == reason {
				note = events.Items[i].Note
				return nil
			}
		}
		return fmt.Errorf("no event %s among %d", reason, len(events.Items))
	})
	return note
}

func TestDeletionRetain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.ready("payments", nil)
	p, err := w.get("payments")
	if err != nil || len(p.Finalizers) > 0 {
		t.Fatalf("a policy that retains its keyspace has finalizers %v (%v)", p.Finalizers, err)
	}
	w.remove(p)
	w.awaitGone("payments")
	w.keeps(w.namespace + ".payments")
	eventually(t, func() error {
		w.stores.mu.Lock()
		defer w.stores.mu.Unlock()
		if len(w.stores.open) > 0 {
			return fmt.Errorf("%d stores are still open", len(w.stores.open))
		}
		return nil
	})
}

func TestDeletionDelete(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.remove(w.ready("payments", dropping))
	w.awaitGone("payments")
	if have := w.keyspaces(); len(have) > 0 {
		t.Errorf("keyspaces %v are still there", have)
	}
}

// TestDeletionThenTheSameAgain: another policy keeps the store open, so that what is known about it outlives the first.
func TestDeletionThenTheSameAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.ready("orders", func(p *v1alpha1.IdempotencyPolicy) { p.Spec.Selector.MatchLabels = map[string]string{"app": "orders"} })
	w.remove(w.ready("payments", dropping))
	w.awaitGone("payments")
	if have, want := w.keyspaces(), []string{w.namespace + ".orders"}; !slices.Equal(have, want) {
		t.Fatalf("keyspaces %v are left, want %v", have, want)
	}
	w.ready("payments", dropping)
	w.keeps(w.namespace + ".payments")
}

// TestLostSchema takes everything away under a policy that is Ready.
func TestLostSchema(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.ready("payments", nil)
	w.exec(`DROP SCHEMA idempotency CASCADE`)
	eventually(t, func() error {
		w.stores.expire()
		w.nudge("payments")
		var tables int
		conn := pgtest.Connect(t, w.database)
		defer func() { _ = conn.Close(context.Background()) }()
		err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_tables WHERE schemaname = 'idempotency' AND tablename = 'keyspaces'").Scan(&tables)
		if err == nil && tables == 0 {
			err = errors.New("the schema has not been made again")
		}
		return err
	})
	eventually(t, func() error {
		w.stores.expire()
		w.nudge("payments")
		if have, want := w.keyspaces(), []string{w.namespace + ".payments"}; !slices.Equal(have, want) {
			return fmt.Errorf("keyspaces %v, want %v", have, want)
		}
		return nil
	})
	w.await("payments", v1alpha1.ConditionStoreHealthy, metav1.ConditionTrue, v1alpha1.ReasonHealthy)
}

func TestDeletionPolicyChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	p := w.ready("payments", dropping)
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"retention":{"deletionPolicy":"Retain"}}}`))
	if err := server.client.Patch(t.Context(), p, patch); err != nil {
		t.Fatal(err)
	}
	w.await("payments", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	eventually(t, func() error {
		p, err := w.get("payments")
		if err == nil && len(p.Finalizers) > 0 {
			return fmt.Errorf("finalizers %v are still there", p.Finalizers)
		}
		return err
	})
	w.remove(p)
	w.awaitGone("payments")
	w.keeps(w.namespace + ".payments")
}

// unreachable cuts the operator off the database, and returns what ends that.
func (w *world) unreachable() (mend func()) {
	w.secret("db", map[string]string{"admin-dsn": "postgres://u:p@127.0.0.1:1/db"})
	return func() { w.secret("db", map[string]string{"admin-dsn": w.admin}) }
}

func TestDeletionWaitsForTheStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	p := w.ready("payments", dropping)
	mend := w.unreachable()
	w.remove(p)
	message := w.await("payments", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonDeleting)
	if !strings.Contains(message, "kubectl annotate idempotencypolicy payments "+v1alpha1.ReleaseAnnotation+"=true") {
		t.Errorf("the message %q does not say the way out", message)
	}
	w.awaitEvent(v1alpha1.ReasonUnreachable)
	w.keeps(w.namespace + ".payments")
	mend()
	w.awaitGone("payments")
	if have := w.keyspaces(); len(have) > 0 {
		t.Errorf("keyspaces %v are still there", have)
	}
}

func TestDeletionReleased(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	p := w.ready("payments", dropping)
	w.unreachable()
	w.remove(p)
	w.await("payments", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonDeleting)
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+v1alpha1.ReleaseAnnotation+`":"true"}}}`))
	if err := server.client.Patch(t.Context(), p, patch); err != nil {
		t.Fatal(err)
	}
	w.awaitGone("payments")
	w.keeps(w.namespace + ".payments")
	if note := w.awaitEvent("KeyspaceRetained"); !strings.Contains(note, v1alpha1.ReleaseAnnotation) {
		t.Errorf("the event %q does not say why", note)
	}
}

func TestDeletionWithoutSecret(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	p := w.ready("payments", dropping)
	w.remove(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "db"}})
	w.remove(p)
	w.awaitGone("payments")
	w.keeps(w.namespace + ".payments")
}

func TestDeletionOfTheLoser(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	p := w.ready("payments", dropping)
	w.exec("UPDATE idempotency.keyspaces SET claim = 'another-cluster/x/payments'")
	w.remove(p)
	w.awaitGone("payments")
	w.keeps(w.namespace + ".payments")
}

func TestDeletionOfASharedKeyspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	share := func(p *v1alpha1.IdempotencyPolicy) { dropping(p); p.Spec.Keyspace = "shared" }
	first := w.ready("payments", share)
	second := w.ready("orders", func(p *v1alpha1.IdempotencyPolicy) {
		share(p)
		p.Spec.Selector.MatchLabels = map[string]string{"app": "orders"}
	})
	w.remove(first)
	w.awaitGone("payments")
	w.keeps("shared")
	if note := w.awaitEvent("KeyspaceRetained"); !strings.Contains(note, "/orders") {
		t.Errorf("the event %q does not name the other policy", note)
	}
	w.remove(second)
	w.awaitGone("orders")
	if have := w.keyspaces(); len(have) > 0 {
		t.Errorf("keyspaces %v are still there", have)
	}
}
