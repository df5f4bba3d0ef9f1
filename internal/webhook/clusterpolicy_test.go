// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject/injecttest"
)

func clusterPolicy(change func(*v1alpha1.ClusterIdempotencyPolicySpec)) *v1alpha1.ClusterIdempotencyPolicy {
	c := &v1alpha1.ClusterIdempotencyPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "webhook"},
		Spec: v1alpha1.ClusterIdempotencyPolicySpec{
			NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}, IdempotencyPolicySpec: injecttest.Policy().Spec,
		},
	}
	if change != nil {
		change(&c.Spec)
	}
	return c
}

// TestClusterPolicyRefused sends cluster policies through an API server that asks the webhook.
func TestClusterPolicyRefused(t *testing.T) {
	cluster := theCluster(t)
	again := func(s *v1alpha1.ClusterIdempotencyPolicySpec) {
		s.Routes = append(s.Routes, v1alpha1.Route{Name: "again", Methods: s.Routes[0].Methods, Path: s.Routes[0].Path})
	}
	if err := cluster.client.Create(t.Context(), clusterPolicy(again)); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.routes") {
		t.Errorf("two routes that match the same requests: %v", err)
	}
	stored := clusterPolicy(nil)
	if err := cluster.client.Create(t.Context(), stored); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.client.Delete(t.Context(), stored) })
	changed := stored.DeepCopy()
	again(&changed.Spec)
	if err := cluster.client.Update(t.Context(), changed); !apierrors.IsInvalid(err) {
		t.Errorf("the same, later: %v", err)
	}
}

// TestClusterPolicyUpdate never stands in the way of what leaves the spec alone.
func TestClusterPolicyUpdate(t *testing.T) {
	valid := clusterPolicy(nil)
	invalid := clusterPolicy(func(s *v1alpha1.ClusterIdempotencyPolicySpec) { s.Routes = nil })
	labelled, deleted := invalid.DeepCopy(), invalid.DeepCopy()
	labelled.Labels = map[string]string{"a": "b"}
	deleted.DeletionTimestamp = ptr.To(metav1.Unix(1, 0))
	large := clusterPolicy(func(s *v1alpha1.ClusterIdempotencyPolicySpec) {
		c := injecttest.Case{Name: "limits", Spec: []byte(`{"sidecar":{"resources":{"requests":{"cpu":"2"},"limits":{"cpu":"1"}}}}`)}
		s.IdempotencyPolicySpec = c.Policy(t).Spec
	})
	for _, row := range []struct {
		why      string
		old, now *v1alpha1.ClusterIdempotencyPolicy
		refused  bool
	}{
		{"a change that breaks the policy", valid, invalid, true},
		{"a sidecar that cannot be injected", valid, large, true},
		{"a change that mends it", invalid, valid, false},
		{"a label of a policy that an older operator accepted", invalid, labelled, false},
		{"anything about a policy that is being deleted", valid, deleted, false},
	} {
		_, err := (&clusterPolicyValidator{image: injecttest.DefaultImage}).ValidateUpdate(t.Context(), row.old, row.now)
		if (err != nil) != row.refused {
			t.Errorf("%s: refused with %v, want %v", row.why, err, row.refused)
		}
	}
	shared := clusterPolicy(func(s *v1alpha1.ClusterIdempotencyPolicySpec) {
		s.Client = v1alpha1.Client{Shared: &v1alpha1.SharedClient{}}
	})
	if warned, err := (&clusterPolicyValidator{image: injecttest.DefaultImage}).ValidateCreate(t.Context(), shared); err != nil || len(warned) != 1 {
		t.Errorf("warnings %v, %v", warned, err)
	}
}
