// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/policy"
)

// policies are one that is fine, one that is not, and one that the operator has not seen.
func policies() []v1alpha1.IdempotencyPolicy {
	condition := func(name string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: name, Status: status, Reason: reason, Message: message}
	}
	runway := metav1.NewTime(time.Date(2026, 12, 8, 0, 0, 0, 0, time.UTC))
	fine := v1alpha1.IdempotencyPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "payments", Generation: 2}}
	fine.Status = v1alpha1.IdempotencyPolicyStatus{
		ObservedGeneration: 2,
		Conditions: []metav1.Condition{
			condition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, "everything holds"),
			condition(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "the policy is valid"),
		},
		Store:      &v1alpha1.StoreStatus{Type: "Postgres", Version: "15.18", SchemaVersion: 1},
		Partitions: &v1alpha1.PartitionsStatus{Count: 8, RunwayUntil: &runway},
		Pods:       &v1alpha1.PodsStatus{Matched: 3, Injected: 3, Summary: "3/3"},
	}
	bad := *fine.DeepCopy()
	bad.Name, bad.Generation = "orders", 3
	bad.Spec.Keyspace, bad.Spec.Mode = "money", v1alpha1.ModeAudit
	bad.Status.Conditions = []metav1.Condition{
		condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPodsMissingSidecar, "1 of 3 pods has no sidecar"),
		condition(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "the policy is valid"),
		condition(v1alpha1.ConditionInjected, metav1.ConditionFalse, v1alpha1.ReasonPodsMissingSidecar, "1 of 3 pods has no sidecar: restart it"),
		condition(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressing, "at work"),
		condition(v1alpha1.ConditionStalled, metav1.ConditionFalse, v1alpha1.ReasonProgressing, "not stalled"),
	}
	bad.Status.Pods = &v1alpha1.PodsStatus{Matched: 3, Injected: 2, Outdated: 1, Unsupported: 1, Summary: "2/3"}
	unseen := v1alpha1.IdempotencyPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "bank", Name: "transfers", Generation: 1}}
	all := []v1alpha1.IdempotencyPolicy{fine, bad, unseen}
	for i := range all {
		policy.Default(&all[i])
	}
	return all
}

func TestWriteStatus(t *testing.T) {
	tests := []struct {
		reason, golden string
		policies       []v1alpha1.IdempotencyPolicy
		all            bool
	}{
		{"a list shows what needs attention, sorted", "status-list.txt", policies(), false},
		{"a single policy shows everything", "status-one.txt", policies()[1:2], true},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			var out bytes.Buffer
			if err := writeStatus(&out, tt.policies, tt.all); err != nil {
				t.Fatal(err)
			}
			compareGolden(t, tt.golden, out.String())
		})
	}
}

func TestStatus(t *testing.T) {
	first, second := newNamespace(t), newNamespace(t)
	createPolicy(t, first, "payments", "app: payments")
	createPolicy(t, first, "orders", "app: orders")
	createPolicy(t, second, "transfers", "app: transfers")
	tests := []struct {
		reason string
		args   []string
		lines  []string // beginnings of the lines, blank ones left out
		err    string
	}{
		{"a namespace", []string{"-n", first}, []string{"NAMESPACE ", first + " orders ", first + " payments ", first + "/orders: the operator has seen", "Ready False Invalid", first + "/payments: ", "Ready False Invalid"}, ""},
		{"one policy", []string{"orders", "-n", first}, []string{"NAMESPACE ", first + " orders ", first + "/orders: ", "Ready False Invalid", "Accepted True"}, ""},
		{"a namespace without any", []string{"-n", "default"}, nil, "No policies found."},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			got := execute(t, "", append([]string{"status", "--kubeconfig", server.admin}, tt.args...)...)
			if got.failure != nil {
				t.Fatal(got.failure)
			}
			if strings.TrimSpace(got.err) != tt.err {
				t.Errorf("it said %q, want %q", got.err, tt.err)
			}
			lines := strings.FieldsFunc(squeeze(got.out), func(r rune) bool { return r == '\n' })
			if len(lines) != len(tt.lines) {
				t.Fatalf("%d lines, want %d:\n%s", len(lines), len(tt.lines), got.out)
			}
			for i, line := range lines {
				if !strings.HasPrefix(line, tt.lines[i]) {
					t.Errorf("line %d is %q, want it to begin with %q", i, line, tt.lines[i])
				}
			}
		})
	}
	everywhere := execute(t, "", "status", "-A", "--kubeconfig", server.admin)
	for _, namespace := range []string{first, second} {
		if !strings.Contains(everywhere.out, "\n"+namespace+" ") {
			t.Errorf("-A does not show namespace %s: %v\n%s", namespace, everywhere.failure, everywhere.out)
		}
	}
}

func TestStatusExplains(t *testing.T) {
	if got := execute(t, "", "status", "refunds", "-n", "shop", "--kubeconfig", server.admin); !strings.Contains(got.message(), "get policy shop/refunds") {
		t.Errorf("a policy that is not there: %v", got.failure)
	}
	if got := execute(t, "", "status", "--kubeconfig", server.stranger); !strings.Contains(got.message(), "forbidden") {
		t.Errorf("a user without rights: %v", got.failure)
	}
	if got := execute(t, "", "status", "--kubeconfig", "/no/such/file"); !strings.Contains(got.message(), "/no/such/file") {
		t.Errorf("no kubeconfig: %v", got.failure)
	}
	bare := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/api" && r.URL.Path != "/apis" {
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(w, `{"kind": "APIGroupList", "apiVersion": "v1", "groups": []}`)
	}))
	defer bare.Close()
	if got := execute(t, "", "status", "--kubeconfig", os.DevNull, "--server", bare.URL); !strings.Contains(got.message(), "install the operator first") {
		t.Errorf("a cluster without the operator: %v", got.failure)
	}
}
