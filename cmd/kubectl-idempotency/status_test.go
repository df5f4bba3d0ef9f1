// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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

// api serves what the API server answers to the commands: discovery of one group, and objects by path. It returns a kubeconfig for it.
func api(t *testing.T, objects map[string]any) (kubeconfig string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		object, found := objects[r.URL.Path]
		w.Header().Set("Content-Type", "application/json")
		if !found {
			w.WriteHeader(http.StatusNotFound)
			object = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: 404, Message: "not found"}
		}
		if err := json.NewEncoder(w).Encode(object); err != nil {
			t.Errorf("answer %s: %v", r.URL.Path, err)
		}
	}))
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion": "v1", "kind": "Config", "current-context": "here",
		"contexts": [{"name": "here", "context": {"cluster": "here", "namespace": "shop", "user": "me"}}],
		"users": [{"name": "me", "user": {}}],
		"clusters": [{"name": "here", "cluster": {"server": "` + server.URL + `"}}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const policiesPath = "/apis/idempotency.dev/v1alpha1/namespaces/shop/idempotencypolicies"

// served is discovery and the policies of namespace shop.
func served() map[string]any {
	all := policies()
	for i := range all {
		all[i].TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "IdempotencyPolicy"}
	}
	list := func(items ...v1alpha1.IdempotencyPolicy) v1alpha1.IdempotencyPolicyList {
		return v1alpha1.IdempotencyPolicyList{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "IdempotencyPolicyList"}, Items: items}
	}
	version := metav1.GroupVersionForDiscovery{GroupVersion: v1alpha1.GroupVersion.String(), Version: "v1alpha1"}
	group := metav1.APIGroup{Name: "idempotency.dev", Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version}
	return map[string]any{
		"/api":                  metav1.APIVersions{Versions: []string{"v1"}},
		"/apis":                 metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{group}},
		"/apis/idempotency.dev": group,
		"/apis/idempotency.dev/v1alpha1": metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: v1alpha1.GroupVersion.String(),
			APIResources: []metav1.APIResource{{Name: "idempotencypolicies", SingularName: "idempotencypolicy", Namespaced: true, Kind: "IdempotencyPolicy", Verbs: metav1.Verbs{"get", "list"}}},
		},
		"/api/v1": metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: "v1",
			APIResources: []metav1.APIResource{{Name: "secrets", SingularName: "secret", Namespaced: true, Kind: "Secret", Verbs: metav1.Verbs{"get"}}},
		},
		policiesPath: list(all[0], all[1]),
		"/apis/idempotency.dev/v1alpha1/idempotencypolicies":                  list(all...),
		policiesPath + "/orders":                                              all[1],
		"/apis/idempotency.dev/v1alpha1/namespaces/empty/idempotencypolicies": list(),
	}
}

func TestStatus(t *testing.T) {
	kubeconfig := api(t, served())
	tests := []struct {
		reason string
		args   []string
		lines  []string // beginnings of the lines, blank ones left out
		err    string
	}{
		{"the context's namespace", nil, []string{"NAMESPACE ", "shop  ", "shop  ", "shop/orders", "  Ready ", "  Injected ", "  Reconciling "}, ""},
		{"one policy", []string{"orders"}, []string{"NAMESPACE ", "shop  ", "shop/orders", "  Ready ", "  Accepted ", "  Injected ", "  Reconciling ", "  Stalled "}, ""},
		{"all namespaces", []string{"-A"}, []string{"NAMESPACE ", "bank ", "shop ", "shop ", "bank/transfers", "shop/orders", "  Ready ", "  Injected ", "  Reconciling "}, ""},
		{"a namespace without any", []string{"-n", "empty"}, nil, "No policies found."},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			got := execute(t, "", append([]string{"status", "--kubeconfig", kubeconfig}, tt.args...)...)
			if got.failure != nil {
				t.Fatal(got.failure)
			}
			if strings.TrimSpace(got.err) != tt.err {
				t.Errorf("it said %q, want %q", got.err, tt.err)
			}
			var lines []string
			for line := range strings.Lines(got.out) {
				if line != "\n" {
					lines = append(lines, line)
				}
			}
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
}

func TestStatusExplains(t *testing.T) {
	if got := execute(t, "", "status", "refunds", "--kubeconfig", api(t, served())); !strings.Contains(got.message(), "get policy shop/refunds") {
		t.Errorf("a policy that is not there: %v", got.failure)
	}
	bare := map[string]any{"/api": metav1.APIVersions{}, "/apis": metav1.APIGroupList{}}
	if got := execute(t, "", "status", "--kubeconfig", api(t, bare)); !strings.Contains(got.message(), "install the operator first") {
		t.Errorf("a cluster without the operator: %v", got.failure)
	}
	if got := execute(t, "", "status", "--kubeconfig", "/no/such/file"); !strings.Contains(got.message(), "/no/such/file") {
		t.Errorf("no kubeconfig: %v", got.failure)
	}
}
