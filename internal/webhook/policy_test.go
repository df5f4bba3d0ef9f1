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

// TestPolicyRefused names the field of what cannot work.
func TestPolicyRefused(t *testing.T) {
	for _, row := range []struct {
		why    string
		change func(*v1alpha1.IdempotencyPolicySpec)
		field  string
	}{
		{"nothing is wrong", func(*v1alpha1.IdempotencyPolicySpec) {}, ""},
		{"two routes match the same requests", func(s *v1alpha1.IdempotencyPolicySpec) {
			s.Routes = append(s.Routes, v1alpha1.Route{Name: "again", Methods: s.Routes[0].Methods, Path: s.Routes[0].Path})
		}, "spec.routes"},
		{"NamedPort without a name", func(s *v1alpha1.IdempotencyPolicySpec) { s.Target.Port.Type, s.Target.Port.IntVal = 0, 8080 }, "spec.target.port"},
		{"a request above its limit", func(s *v1alpha1.IdempotencyPolicySpec) {
			c := injecttest.Case{Name: "limits", Spec: []byte(`{"sidecar":{"resources":{"requests":{"cpu":"2"},"limits":{"cpu":"1"}}}}`)}
			*s = c.Policy(t).Spec
		}, "spec.sidecar"},
	} {
		t.Run(row.why, func(t *testing.T) {
			p := injecttest.Policy()
			row.change(&p.Spec)
			_, err := (&policyValidator{image: injecttest.DefaultImage}).ValidateCreate(t.Context(), p)
			if row.field == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), row.field) {
				t.Errorf("error %v, want one that names %s", err, row.field)
			}
		})
	}
}

// TestPolicyUpdate never stands in the way of what leaves the spec alone.
func TestPolicyUpdate(t *testing.T) {
	valid, invalid := injecttest.Policy(), injecttest.Policy()
	invalid.Spec.Routes = nil
	finalized := invalid.DeepCopy()
	finalized.Finalizers = []string{v1alpha1.Finalizer}
	deleted := invalid.DeepCopy()
	deleted.DeletionTimestamp = ptr.To(metav1.Unix(1, 0))
	for _, row := range []struct {
		why      string
		old, now *v1alpha1.IdempotencyPolicy
		refused  bool
	}{
		{"a change that breaks the policy", valid, invalid, true},
		{"a change that mends it", invalid, valid, false},
		{"a finalizer of a policy that an older operator accepted", invalid, finalized, false},
		{"anything about a policy that is being deleted", valid, deleted, false},
	} {
		_, err := (&policyValidator{image: injecttest.DefaultImage}).ValidateUpdate(t.Context(), row.old, row.now)
		if (err != nil) != row.refused {
			t.Errorf("%s: refused with %v, want %v", row.why, err, row.refused)
		}
	}
}

// TestPolicyMove: where entries are changes only when somebody says what is lost.
func TestPolicyMove(t *testing.T) {
	in := func(keyspace string, redis bool, abandons string) *v1alpha1.IdempotencyPolicy {
		p := injecttest.Policy()
		p.Namespace, p.Name, p.Spec.Keyspace = "shop", "payments", keyspace
		if redis {
			p.Spec.Store = v1alpha1.Store{Redis: &v1alpha1.RedisStore{DSNSecretRef: v1alpha1.SecretKeyRef{Name: "db"}}}
		}
		if abandons != "" {
			p.Annotations = map[string]string{v1alpha1.AbandonAnnotation: abandons}
		}
		return p
	}
	for _, row := range []struct {
		why      string
		old, now *v1alpha1.IdempotencyPolicy
		refused  string
	}{
		{"another keyspace", in("a", false, ""), in("b", false, ""), "spec.keyspace"},
		{"a keyspace, named later", in("", false, ""), in("b", false, ""), v1alpha1.AbandonAnnotation + "=Postgres/shop.payments"},
		{"a keyspace, no longer named", in("a", false, ""), in("", false, ""), "spec.keyspace"},
		{"another kind of store", in("a", false, ""), in("a", true, ""), "spec.store"},
		{"given up", in("a", false, ""), in("b", false, "Postgres/a"), ""},
		{"given up, with the store", in("a", false, ""), in("a", true, "Postgres/a"), ""},
		{"back, by the consent to the way there", in("b", false, "Postgres/a"), in("a", false, "Postgres/a"), "spec.keyspace"},
		{"other entries are given up", in("a", false, ""), in("b", false, "Postgres/b"), "spec.keyspace"},
		{"those of the other store are given up", in("a", true, ""), in("b", true, "Postgres/a"), "spec.keyspace"},
		{"the kind is changed back to where it was", in("a", true, ""), in("a", false, "Redis/a"), ""},
	} {
		_, err := (&policyValidator{image: injecttest.DefaultImage}).ValidateUpdate(t.Context(), row.old, row.now)
		if (err != nil) != (row.refused != "") || err != nil && !strings.Contains(err.Error(), row.refused) {
			t.Errorf("%s: %v, want %q", row.why, err, row.refused)
		}
	}
}

// TestPolicyWarnings tell what a valid policy gives up.
func TestPolicyWarnings(t *testing.T) {
	for _, row := range []struct {
		why    string
		change func(*v1alpha1.IdempotencyPolicySpec)
		says   string
	}{
		{"nothing is given up", func(*v1alpha1.IdempotencyPolicySpec) {}, ""},
		{"traffic", func(s *v1alpha1.IdempotencyPolicySpec) { s.Target.Interception = v1alpha1.InterceptNone }, "targetPort"},
		{"protection without the store", func(s *v1alpha1.IdempotencyPolicySpec) { s.Store.OnUnavailable = v1alpha1.OnUnavailablePassThrough }, "PassThrough"},
		{"separate callers", func(s *v1alpha1.IdempotencyPolicySpec) { s.Client = v1alpha1.Client{Shared: &v1alpha1.SharedClient{}} }, "shared"},
		{"one effect after a crash", func(s *v1alpha1.IdempotencyPolicySpec) { s.Routes[0].OnUnknownOutcome = v1alpha1.UnknownReexecute }, "routes[0]"},
	} {
		t.Run(row.why, func(t *testing.T) {
			p := injecttest.Policy()
			row.change(&p.Spec)
			warnings, err := (&policyValidator{image: injecttest.DefaultImage}).ValidateCreate(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			if row.says == "" && len(warnings) != 0 || row.says != "" && (len(warnings) != 1 || !strings.Contains(warnings[0], row.says)) {
				t.Errorf("warnings %q, want one that says %q", warnings, row.says)
			}
		})
	}
}
