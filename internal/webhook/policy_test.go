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
