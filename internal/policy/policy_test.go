// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/policy"
)

const samplePath = "../../config/samples/payments.yaml"

// sample is the sample policy as a user writes it, without defaults, in namespace shop.
func sample(t testing.TB) *v1alpha1.IdempotencyPolicy {
	t.Helper()
	text, err := os.ReadFile(samplePath)
	if err != nil {
		t.Fatal(err)
	}
	p := &v1alpha1.IdempotencyPolicy{}
	if err := yaml.UnmarshalStrict(text, p); err != nil {
		t.Fatal(err)
	}
	p.Namespace = "shop"
	return p
}

func TestKeyspace(t *testing.T) {
	p := sample(t)
	if got, want := policy.Keyspace(p), "shop.payments"; got != want {
		t.Errorf("derived keyspace is %q, want %q", got, want)
	}
	p.Spec.Keyspace = "money"
	if got, want := policy.Keyspace(p), "money"; got != want {
		t.Errorf("named keyspace is %q, want %q", got, want)
	}
}

func TestAdminDSN(t *testing.T) {
	p := sample(t)
	if diff := cmp.Diff(v1alpha1.SecretKeyRef{Name: "payments-db", Key: "admin-dsn"}, policy.AdminDSN(p)); diff != "" {
		t.Errorf("with adminDSNSecretRef (-want +got):\n%s", diff)
	}
	p.Spec.Store.Postgres.AdminDSNSecretRef = nil
	if diff := cmp.Diff(v1alpha1.SecretKeyRef{Name: "payments-db", Key: "dsn"}, policy.AdminDSN(p)); diff != "" {
		t.Errorf("without it, the sidecar's (-want +got):\n%s", diff)
	}
	p.Spec.Store.Postgres = nil
	if diff := cmp.Diff(v1alpha1.SecretKeyRef{}, policy.AdminDSN(p)); diff != "" {
		t.Errorf("without PostgreSQL (-want +got):\n%s", diff)
	}
}

func TestConfigMapName(t *testing.T) {
	named := func(name string) string {
		return policy.ConfigMapName(&v1alpha1.IdempotencyPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	fits := strings.Repeat("a", 253-len("idempotency-"))
	tests := []struct{ reason, name, want string }{
		{"a short name is kept", "payments", "idempotency-payments"},
		{"the longest that fits is kept", fits, "idempotency-" + fits},
	}
	for _, tt := range tests {
		if got := named(tt.name); got != tt.want {
			t.Errorf("%s: ConfigMapName(%q) = %q, want %q", tt.reason, tt.name, got, tt.want)
		}
	}
	over, other := named(fits+"a"), named(fits+"b")
	if over == other {
		t.Errorf("two long names that differ in their last byte share the name %q", over)
	}
	dotted := named(strings.Repeat("a", 224) + "." + strings.Repeat("b", 28))
	for _, name := range []string{over, other, dotted} {
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			t.Errorf("ConfigMapName gave %q (%d bytes): %v", name, len(name), problems)
		}
	}
}

// TestSelectorKeys: by their keys the same policies are found that select the pod among all.
func TestSelectorKeys(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	some := func(most int) map[string]string {
		picked := map[string]string{}
		for range random.IntN(most + 1) {
			picked[string(rune('a'+random.IntN(4)))] = string(rune('x' + random.IntN(2)))
		}
		return picked
	}
	selected := 0
	for range 2000 {
		policies := make([]v1alpha1.IdempotencyPolicy, 8)
		for i := range policies {
			policies[i].Name, policies[i].Spec.Selector.MatchLabels = fmt.Sprint(i), some(2)
			if random.IntN(2) == 0 {
				operator := []metav1.LabelSelectorOperator{metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn}[random.IntN(2)]
				policies[i].Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: operator, Values: []string{"x", "z", "x"}[:1+random.IntN(3)]}}
			}
		}
		pod := some(4)
		var candidates []v1alpha1.IdempotencyPolicy
		for _, key := range policy.PodKeys(pod) {
			for _, p := range policies {
				if slices.Contains(policy.SelectorKeys(&p), key) {
					candidates = append(candidates, p)
				}
			}
		}
		want, wantLosers := policy.Select(policies, pod)
		got, gotLosers := policy.Select(candidates, pod)
		if diff := cmp.Diff(want, got); diff != "" || len(wantLosers) != len(gotLosers) {
			t.Fatalf("pod %v, %d and %d losers (-all +indexed):\n%s", pod, len(wantLosers), len(gotLosers), diff)
		}
		if want != nil {
			selected++
		}
	}
	if selected < 500 {
		t.Errorf("only %d of 2000 pods were selected: the test shows little", selected)
	}
}

func TestSelect(t *testing.T) {
	born := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	make := func(name string, age time.Duration, labels map[string]string) v1alpha1.IdempotencyPolicy {
		return v1alpha1.IdempotencyPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(born.Add(-age))},
			Spec:       v1alpha1.IdempotencyPolicySpec{Selector: metav1.LabelSelector{MatchLabels: labels}},
		}
	}
	app := map[string]string{"app": "payments"}
	leaving := make("a-leaving", 9*time.Hour, app)
	leaving.DeletionTimestamp = &metav1.Time{Time: born}
	broken := make("a-broken", 9*time.Hour, nil)
	broken.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Near"}}

	expression := func(name, key string, operator metav1.LabelSelectorOperator, values ...string) v1alpha1.IdempotencyPolicy {
		p := make(name, time.Hour, nil)
		p.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: key, Operator: operator, Values: values}}
		return p
	}

	tests := []struct {
		reason   string
		policies []v1alpha1.IdempotencyPolicy
		winner   string
		losers   []string
	}{
		{"nothing selects the pod", []v1alpha1.IdempotencyPolicy{make("x", 0, map[string]string{"app": "orders"})}, "", nil},
		{"the oldest wins whatever the order", []v1alpha1.IdempotencyPolicy{make("a", 1*time.Hour, app), make("b", 3*time.Hour, app), make("c", 2*time.Hour, app)}, "b", []string{"c", "a"}},
		{"equal ages: the name decides", []v1alpha1.IdempotencyPolicy{make("b", time.Hour, app), make("a", time.Hour, app)}, "a", []string{"b"}},
		{"one that is being deleted does not count", []v1alpha1.IdempotencyPolicy{leaving, make("b", time.Hour, app)}, "b", nil},
		{"an empty selector selects nothing, never everything", []v1alpha1.IdempotencyPolicy{make("a", 9*time.Hour, nil), make("b", time.Hour, app)}, "b", nil},
		{"every operator that the pod meets, and none that it does not", []v1alpha1.IdempotencyPolicy{
			expression("a", "app", metav1.LabelSelectorOpIn, "payments", "orders"), expression("a-not", "app", metav1.LabelSelectorOpIn, "orders"), expression("a-none", "zone", metav1.LabelSelectorOpIn, ""),
			expression("b", "app", metav1.LabelSelectorOpNotIn, "orders"), expression("b-not", "app", metav1.LabelSelectorOpNotIn, "payments"), expression("b-none", "zone", metav1.LabelSelectorOpNotIn, "x"),
			expression("c", "app", metav1.LabelSelectorOpExists), expression("c-not", "zone", metav1.LabelSelectorOpExists),
			expression("d", "zone", metav1.LabelSelectorOpDoesNotExist), expression("d-not", "app", metav1.LabelSelectorOpDoesNotExist),
		}, "a", []string{"b", "b-none", "c", "d"}},
		{"an expression without its values is not valid", []v1alpha1.IdempotencyPolicy{expression("a", "app", metav1.LabelSelectorOpNotIn)}, "", nil},
		{"a selector that is not valid selects nothing", []v1alpha1.IdempotencyPolicy{broken, make("b", time.Hour, app)}, "b", nil},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			winner, losers := policy.Select(tt.policies, map[string]string{"app": "payments", "tier": "back"})
			got := ""
			if winner != nil {
				got = winner.Name
			}
			var names []string
			for _, loser := range losers {
				names = append(names, loser.Name)
			}
			if got != tt.winner {
				t.Errorf("winner is %q, want %q", got, tt.winner)
			}
			if diff := cmp.Diff(tt.losers, names); diff != "" {
				t.Errorf("losers (-want +got):\n%s", diff)
			}
		})
	}
}
