// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

func clusterPolicy() *v1alpha1.ClusterIdempotencyPolicy {
	return &v1alpha1.ClusterIdempotencyPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "payments", UID: "of-payments"},
		Spec: v1alpha1.ClusterIdempotencyPolicySpec{
			NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{"team": "shop"}},
			IdempotencyPolicySpec: v1alpha1.IdempotencyPolicySpec{
				Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "payments"}},
				Target:   v1alpha1.Target{Port: intstr.FromString("http")},
				Store:    v1alpha1.Store{Postgres: &v1alpha1.PostgresStore{DSNSecretRef: v1alpha1.SecretKeyRef{Name: "db"}}},
				Client:   v1alpha1.Client{Header: "X-Client-Id"},
				Routes:   []v1alpha1.Route{{Name: "create", Methods: []v1alpha1.Method{"POST"}, Path: "/payments"}},
			},
		},
	}
}

func TestValidateCluster(t *testing.T) {
	for _, row := range []struct {
		reason string
		change func(*v1alpha1.ClusterIdempotencyPolicy)
		want   string // part of the error; empty: valid
	}{
		{"the shortest", func(*v1alpha1.ClusterIdempotencyPolicy) {}, ""},
		{"the longest name", func(c *v1alpha1.ClusterIdempotencyPolicy) { c.Name = strings.Repeat("a", 63) }, ""},
		{"a name that is no label's value", func(c *v1alpha1.ClusterIdempotencyPolicy) { c.Name = strings.Repeat("a", 64) }, "metadata.name"},
		{"every namespace", func(c *v1alpha1.ClusterIdempotencyPolicy) { c.Spec.NamespaceSelector = metav1.LabelSelector{} }, "spec.namespaceSelector"},
		{"no label", func(c *v1alpha1.ClusterIdempotencyPolicy) {
			c.Spec.NamespaceSelector.MatchLabels = map[string]string{"a b": ""}
		}, "spec.namespaceSelector"},
		{"namespaces share entries", func(c *v1alpha1.ClusterIdempotencyPolicy) { c.Spec.Keyspace = "orders" }, "spec.keyspace"},
		{"what a policy may not say", func(c *v1alpha1.ClusterIdempotencyPolicy) { c.Spec.Routes = append(c.Spec.Routes, c.Spec.Routes[0]) }, "spec.routes"},
		{"two Secrets, one of which is copied", func(c *v1alpha1.ClusterIdempotencyPolicy) {
			c.Spec.SecretSyncFrom = &v1alpha1.SecretSource{Namespace: "secrets", Name: "db"}
			c.Spec.Store.Postgres.AdminDSNSecretRef = &v1alpha1.SecretKeyRef{Name: "other"}
		}, "spec.secretSyncFrom"},
		{"two keys of one Secret", func(c *v1alpha1.ClusterIdempotencyPolicy) {
			c.Spec.SecretSyncFrom = &v1alpha1.SecretSource{Namespace: "secrets", Name: "db"}
			c.Spec.Store.Postgres.AdminDSNSecretRef = &v1alpha1.SecretKeyRef{Name: "db", Key: "admin-dsn"}
		}, ""},
	} {
		c := clusterPolicy()
		row.change(c)
		err := ValidateCluster(c).ToAggregate()
		if (err != nil) != (row.want != "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", row.reason, err, row.want)
		}
	}
}

// TestPrecedence: a policy that somebody wrote wins over one that was made, however young it is.
func TestPrecedence(t *testing.T) {
	at := func(p *v1alpha1.IdempotencyPolicy, name string, second int64) v1alpha1.IdempotencyPolicy {
		p.Name, p.CreationTimestamp = name, metav1.NewTime(time.Unix(second, 0))
		return *p
	}
	made := func() *v1alpha1.IdempotencyPolicy { return InNamespace(clusterPolicy(), "shop") }
	written := func() *v1alpha1.IdempotencyPolicy {
		p := made()
		p.OwnerReferences = nil // the label alone means nothing
		return p
	}
	owned := written()
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps.example.com/v1", Kind: "ClusterIdempotencyPolicy", Name: "x", Controller: new(true)}}
	policies := []v1alpha1.IdempotencyPolicy{
		at(made(), "a", 1), at(made(), "b", 2), at(written(), "d", 4), at(written(), "c", 4), at(owned, "e", 3),
	}
	winner, losers := Select(policies, map[string]string{"app": "payments"})
	order := []string{winner.Name}
	for _, l := range losers {
		order = append(order, l.Name)
	}
	if want := []string{"e", "c", "d", "a", "b"}; !slices.Equal(order, want) {
		t.Errorf("precedence is %v, want %v", order, want)
	}
}
