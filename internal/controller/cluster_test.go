// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/policy"
)

// platform is a world of several namespaces, all with the Secret db, and with a name that only this test's cluster policies and labels have.
type platform struct{ *world }

// newPlatform makes the namespaces; the controllers do not run yet. The first of them is the world's own.
func newPlatform(t *testing.T, namespaces int) *platform {
	t.Helper()
	p := &platform{makeWorld(t)}
	p.name = "test-" + strings.ToLower(rand.Text()[:10])
	for range namespaces - 1 {
		p.others = append(p.others, newNamespace(t))
	}
	for _, other := range p.others {
		p.in(other).secret("db", map[string]string{"dsn": p.sidecar, "admin-dsn": p.admin})
	}
	return p
}

// in is the same world, with another namespace to look at.
func (w *world) in(namespace string) *world {
	other := *w
	other.namespace = namespace
	return &other
}

// label makes a namespace one that the cluster policy selects, or no longer one.
func (p *platform) label(namespace string, selected bool) {
	p.t.Helper()
	value := "null"
	if selected {
		value = `"yes"`
	}
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, p.name, value)
	if err := server.client.Patch(p.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		p.t.Fatal(err)
	}
}

// cluster makes a cluster policy, changed by change.
func (p *platform) cluster(name string, change func(*v1alpha1.ClusterIdempotencyPolicySpec)) *v1alpha1.ClusterIdempotencyPolicy {
	p.t.Helper()
	c := &v1alpha1.ClusterIdempotencyPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"test": p.name}},
		Spec: v1alpha1.ClusterIdempotencyPolicySpec{
			NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{p.name: "yes"}},
			IdempotencyPolicySpec: v1alpha1.IdempotencyPolicySpec{
				Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "payments"}},
				Target:   v1alpha1.Target{Port: intstr.FromString("http")},
				Store: v1alpha1.Store{Postgres: &v1alpha1.PostgresStore{
					DSNSecretRef:      v1alpha1.SecretKeyRef{Name: "db", Key: "dsn"},
					AdminDSNSecretRef: &v1alpha1.SecretKeyRef{Name: "db", Key: "admin-dsn"},
				}},
				Client: v1alpha1.Client{Header: "X-Client-Id"},
				Routes: []v1alpha1.Route{{Name: "create", Methods: []v1alpha1.Method{"POST"}, Path: "/payments"}},
			},
		},
	}
	if change != nil {
		change(&c.Spec)
	}
	create(p.t, c)
	return c
}

func (p *platform) editCluster(name, patch string) {
	p.t.Helper()
	c := &v1alpha1.ClusterIdempotencyPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := server.client.Patch(p.t.Context(), c, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		p.t.Fatal(err)
	}
}

func (p *platform) getCluster(name string) (*v1alpha1.ClusterIdempotencyPolicy, error) {
	c := &v1alpha1.ClusterIdempotencyPolicy{}
	return c, server.client.Get(p.t.Context(), types.NamespacedName{Name: name}, c)
}

// awaitCluster waits for a condition at the cluster policy's generation, and for counts of namespaces, and returns the status.
func (p *platform) awaitCluster(name, condition string, is metav1.ConditionStatus, reason string, counts v1alpha1.NamespacesStatus) v1alpha1.ClusterIdempotencyPolicyStatus {
	p.t.Helper()
	var last v1alpha1.ClusterIdempotencyPolicyStatus
	counts.Summary = fmt.Sprintf("%d/%d", counts.Ready, counts.Selected)
	eventually(p.t, func() error {
		c, err := p.getCluster(name)
		if err != nil {
			return err
		}
		last = c.Status
		found := meta.FindStatusCondition(c.Status.Conditions, condition)
		if found == nil || found.Status != is || found.Reason != reason || found.ObservedGeneration != c.Generation {
			return fmt.Errorf("%s is not %s/%s: %+v", condition, is, reason, c.Status.Conditions)
		}
		if c.Status.Namespaces == nil || *c.Status.Namespaces != counts {
			return fmt.Errorf("namespaces are %+v, not %+v; worst %+v", c.Status.Namespaces, counts, c.Status.Worst)
		}
		seenReasons.Store(reason, true)
		for _, at := range c.Status.Worst {
			seenReasons.Store(at.Reason, true)
		}
		return nil
	})
	return last
}

// seenCluster waits until Argo CD, and tools that know kstatus, see the cluster policy so.
func (p *platform) seenCluster(name string, want status.Status) {
	p.t.Helper()
	eventually(p.t, func() error {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ClusterIdempotencyPolicy"))
		if err := server.client.Get(p.t.Context(), types.NamespacedName{Name: name}, u); err != nil {
			return err
		}
		argo := map[status.Status]string{status.InProgressStatus: "Progressing", status.CurrentStatus: "Healthy", status.FailedStatus: "Degraded"}
		if health, message := argoHealth(p.t, healthScript(p.t), u.Object); health != argo[want] {
			return fmt.Errorf("Argo CD sees %s (%s), not %s", health, message, argo[want])
		}
		result, err := status.Compute(u)
		if err == nil && result.Status != want {
			err = fmt.Errorf("kstatus is %s (%s), not %s", result.Status, result.Message, want)
		}
		return err
	})
}

func namespaces(selected, ready, failing, overridden int32) v1alpha1.NamespacesStatus {
	return v1alpha1.NamespacesStatus{Selected: selected, Ready: ready, Failing: failing, Overridden: overridden}
}

// TestClusterPolicy: the selected namespaces have the policy, each with a keyspace of its own, and the others do not.
func TestClusterPolicy(t *testing.T) {
	t.Parallel()
	p := newPlatform(t, 3)
	a, b, c := p.namespace, p.others[0], p.others[1]
	p.label(a, true)
	p.label(b, true)
	cluster := p.cluster(p.name, nil)
	made := policy.NameInNamespace(p.name)
	p.seenCluster(p.name, status.InProgressStatus) // nobody runs yet
	p.run(clock.RealClock{}, false)
	p.awaitCluster(p.name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, namespaces(2, 2, 0, 0))
	p.awaitCluster(p.name, v1alpha1.ConditionDistributed, metav1.ConditionTrue, v1alpha1.ReasonDistributed, namespaces(2, 2, 0, 0))
	p.seenCluster(p.name, status.CurrentStatus)
	if names, want := p.keyspaces(), []string{a + "." + made, b + "." + made}; !slices.Equal(names, slices.Sorted(slices.Values(want))) {
		t.Errorf("keyspaces are %v, want %v", names, want)
	}
	in, err := p.get(made)
	if err != nil {
		t.Fatal(err)
	}
	if !metav1.IsControlledBy(in, cluster) || in.Labels[v1alpha1.ClusterPolicyLabel] != p.name {
		t.Errorf("the policy that was made has labels %v and owners %v", in.Labels, in.OwnerReferences)
	}

	// Pods of all namespaces are counted together.
	p.pod("one", map[string]string{"app": "payments"}, nil)
	p.in(b).pod("two", map[string]string{"app": "payments"}, nil)
	last := p.awaitCluster(p.name, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNamespacesNotReady, namespaces(2, 0, 2, 0))
	if last.Pods == nil || last.Pods.Summary != "0/2" {
		t.Errorf("pods are %+v, not 0/2", last.Pods)
	}
	p.in(b).deletePod("two")
	last = p.awaitCluster(p.name, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNamespacesNotReady, namespaces(2, 1, 1, 0))
	if len(last.Worst) != 1 || last.Worst[0].Namespace != a || last.Worst[0].Reason != v1alpha1.ReasonPodsMissingSidecar {
		t.Errorf("worst are %+v", last.Worst)
	}
	p.deletePod("one")

	// An edit reaches every namespace, a label the next one, and a label less takes it away.
	p.editCluster(p.name, `{"spec":{"mode":"Audit"}}`)
	p.label(c, true)
	p.label(b, false)
	p.awaitCluster(p.name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, namespaces(2, 2, 0, 0))
	p.in(b).awaitGone(made)
	for _, namespace := range []string{a, c} {
		if in, err := p.in(namespace).get(made); err != nil || in.Spec.Mode != v1alpha1.ModeAudit {
			t.Errorf("policy of %s: %v, mode %s", namespace, err, in.Spec.Mode)
		}
	}
	p.label(a, false)
	p.label(c, false)
	p.awaitCluster(p.name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonNoNamespaces, namespaces(0, 0, 0, 0))
}

func (w *world) deletePod(name string) {
	w.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	if err := server.client.Delete(w.t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		w.t.Fatal(err)
	}
}

// TestClusterPolicyIsPutBack: whatever somebody does to a policy that was made.
func TestClusterPolicyIsPutBack(t *testing.T) {
	t.Parallel()
	p := newPlatform(t, 2)
	p.label(p.namespace, true)
	p.cluster(p.name, nil)
	p.run(clock.RealClock{}, false)
	p.awaitCluster(p.name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, namespaces(1, 1, 0, 0))
	name := policy.NameInNamespace(p.name)
	before, err := p.get(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ patch, reason string }{
		{`{"spec":{"mode":"Audit"}}`, "a field is changed"},
		{`{"spec":{"routes":[{"name":"create","methods":["POST"],"path":"/payments"},{"name":"more","methods":["POST"],"path":"/more"}]}}`, "a route is added"},
		{`{"spec":{"sidecar":{"image":"other:1"}}}`, "a field is added"},
		{`{"metadata":{"labels":null}}`, "its label is taken away"},
		{`{"metadata":{"ownerReferences":null}}`, "its owner is taken away"},
	} {
		in := &v1alpha1.IdempotencyPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: name}}
		if err := server.client.Patch(t.Context(), in, client.RawPatch(types.MergePatchType, []byte(tt.patch))); err != nil {
			t.Fatalf("%s: %v", tt.reason, err)
		}
		eventually(t, func() error {
			now, err := p.get(name)
			if err != nil {
				return err
			}
			if diff := cmp.Diff(before.Spec, now.Spec) + cmp.Diff(before.Labels, now.Labels) + cmp.Diff(before.OwnerReferences, now.OwnerReferences); diff != "" {
				return fmt.Errorf("%s, and stays so: %s", tt.reason, diff)
			}
			return nil
		})
	}
	p.remove(before)
	eventually(t, func() error {
		now, err := p.get(name)
		if err == nil && now.UID == before.UID {
			err = errWait
		}
		return err
	})
	p.await(name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// TestClusterPolicyOverridden: a policy that somebody wrote takes precedence, however young, and the cluster policy is none the worse for it.
func TestClusterPolicyOverridden(t *testing.T) {
	t.Parallel()
	p := newPlatform(t, 2)
	p.label(p.namespace, true)
	p.label(p.others[0], true)
	p.cluster(p.name, nil)
	p.run(clock.RealClock{}, false)
	p.awaitCluster(p.name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, namespaces(2, 2, 0, 0))
	name := policy.NameInNamespace(p.name)
	written := p.policy("own", nil)
	p.await("own", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	if message := p.await(name, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonOverridden); !strings.Contains(message, `"own"`) {
		t.Errorf("the message %q does not name the policy", message)
	}
	p.awaitCluster(p.name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, namespaces(2, 2, 0, 1))
	p.injectedPod("one", written, sidecarImage)
	eventually(t, func() error {
		own, err := p.get("own")
		made, err2 := p.get(name)
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		if own.Status.Pods.Summary != "1/1" || made.Status.Pods.Summary != "0/0" {
			return fmt.Errorf("pods are %+v and %+v", own.Status.Pods, made.Status.Pods)
		}
		return nil
	})
	p.remove(written)
	p.await(name, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)

	// Two that were made have a quarrel like any two policies.
	second := p.name + "-second"
	p.cluster(second, nil)
	last := p.awaitCluster(second, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNamespacesNotReady, namespaces(2, 0, 2, 0))
	if last.Worst[0].Reason != v1alpha1.ReasonConflicted || !strings.Contains(last.Worst[0].Message, name) {
		t.Errorf("worst is %+v", last.Worst[0])
	}
}

// TestClusterPolicyKeepsOff: what is not the operator's it leaves alone, and says so.
func TestClusterPolicyKeepsOff(t *testing.T) {
	t.Parallel()
	p := newPlatform(t, 3)
	name := policy.NameInNamespace(p.name)
	written := p.policy(name, func(p *v1alpha1.IdempotencyPolicy) { p.Spec.Mode = v1alpha1.ModeAudit })
	refuses := p.others[0]
	p.refuse(refuses)
	for _, namespace := range []string{p.namespace, refuses, p.others[1]} {
		p.label(namespace, true)
	}
	p.cluster(p.name, nil)
	p.run(clock.RealClock{}, false)
	p.awaitCluster(p.name, v1alpha1.ConditionDistributed, metav1.ConditionFalse, p.first(map[string]string{p.namespace: v1alpha1.ReasonNameTaken, refuses: v1alpha1.ReasonApplyFailed}), namespaces(3, 1, 2, 0))
	c, err := p.getCluster(p.name)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range c.Status.Worst {
		if at.Namespace == p.namespace && at.Reason != v1alpha1.ReasonNameTaken || at.Namespace == refuses && !strings.Contains(at.Message, "not in this namespace") {
			t.Errorf("trouble is %+v", at)
		}
	}
	if in, err := p.get(name); err != nil || in.Spec.Mode != v1alpha1.ModeAudit || len(in.OwnerReferences) > 0 {
		t.Errorf("what somebody wrote is now %+v, %v", in, err)
	}
	p.remove(written)
	p.await(name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// first is the value of the first key.
func (p *platform) first(all map[string]string) string {
	keys := make([]string, 0, len(all))
	for key := range all {
		keys = append(keys, key)
	}
	return all[slices.Min(keys)]
}

// refuse makes the API server deny policies in a namespace.
func (p *platform) refuse(namespace string) {
	p.t.Helper()
	vap := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	vap.Spec.MatchConstraints = &admissionv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
		ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule:       admissionv1.Rule{APIGroups: []string{v1alpha1.GroupVersion.Group}, APIVersions: []string{"*"}, Resources: []string{"idempotencypolicies"}},
		}}},
	}
	vap.Spec.Validations = []admissionv1.Validation{{Expression: "false", Message: "not in this namespace"}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	binding.Spec = admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: namespace, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}
	create(p.t, vap)
	create(p.t, binding)
	eventually(p.t, func() error {
		probe := unstructuredPolicy(p.t, "")
		probe.SetNamespace(namespace)
		if err := server.client.Create(p.t.Context(), probe, client.DryRunAll); err == nil || !strings.Contains(err.Error(), "not in this namespace") {
			return fmt.Errorf("creation says %w, and is not refused", err)
		}
		return nil
	})
}

// TestClusterPolicyInvalid: no webhook runs here, as when one is bypassed. What is in the namespaces stays.
func TestClusterPolicyInvalid(t *testing.T) {
	t.Parallel()
	p := newPlatform(t, 2)
	p.label(p.namespace, true)
	p.cluster(p.name, nil)
	p.run(clock.RealClock{}, false)
	p.awaitCluster(p.name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, namespaces(1, 1, 0, 0))
	p.editCluster(p.name, `{"spec":{"routes":[{"name":"create","methods":["POST"],"path":"/payments"},{"name":"again","methods":["POST"],"path":"/payments"}]}}`)
	p.awaitCluster(p.name, v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalid, namespaces(1, 1, 0, 0))
	p.seenCluster(p.name, status.FailedStatus)
	p.label(p.namespace, false)
	p.awaitCluster(p.name, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonInvalid, namespaces(0, 0, 0, 0))
	if _, err := p.get(policy.NameInNamespace(p.name)); err != nil {
		t.Errorf("the policy that was made is gone: %v", err)
	}
	p.editCluster(p.name, `{"spec":{"routes":[{"name":"create","methods":["POST"],"path":"/payments"}]}}`)
	p.awaitGone(policy.NameInNamespace(p.name))
}

// TestClusterPolicyDeletion: what becomes of the entries of a namespace that is no longer selected, deletionPolicy says.
func TestClusterPolicyDeletion(t *testing.T) {
	t.Parallel()
	p := newPlatform(t, 2)
	p.label(p.namespace, true)
	p.label(p.others[0], true)
	p.cluster(p.name, func(s *v1alpha1.ClusterIdempotencyPolicySpec) { s.Retention.DeletionPolicy = v1alpha1.DeletionDelete })
	p.run(clock.RealClock{}, false)
	p.awaitCluster(p.name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, namespaces(2, 2, 0, 0))
	name := policy.NameInNamespace(p.name)
	if names := p.keyspaces(); len(names) != 2 {
		t.Fatalf("keyspaces are %v", names)
	}
	p.label(p.namespace, false)
	p.awaitGone(name)
	if names, want := p.keyspaces(), []string{p.others[0] + "." + name}; !slices.Equal(names, want) {
		t.Errorf("keyspaces are %v, want %v", names, want)
	}
}

// TestClusterPolicyIsSteady: nothing is written when nothing changed.
func TestClusterPolicyIsSteady(t *testing.T) {
	t.Parallel()
	p := newPlatform(t, 2)
	p.label(p.namespace, true)
	p.cluster(p.name, func(s *v1alpha1.ClusterIdempotencyPolicySpec) { s.Routes[0].Responses.Headers = []string{"X-Trace"} })
	p.run(clock.RealClock{}, false)
	p.awaitCluster(p.name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, namespaces(1, 1, 0, 0))
	name := policy.NameInNamespace(p.name)
	before, err := p.get(name)
	c, err2 := p.getCluster(p.name)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	// A look at this one after many looks at that one: an unselected namespace that is selected and given up makes the controller look at all.
	p.label(p.others[0], true)
	p.in(p.others[0]).await(name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	p.awaitCluster(p.name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, namespaces(2, 2, 0, 0))
	p.label(p.others[0], false)
	p.in(p.others[0]).awaitGone(name)
	p.awaitCluster(p.name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, namespaces(1, 1, 0, 0))
	after, err := p.get(name)
	c2, err2 := p.getCluster(p.name)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if after.ResourceVersion != before.ResourceVersion || c2.Generation != c.Generation {
		t.Errorf("the policy was written again:\n%+v\n%+v", before, after)
	}
}

// TestSurveyIsBounded: a status does not grow with the namespaces, and names those that most need somebody.
func TestSurveyIsBounded(t *testing.T) {
	for _, n := range []int{0, 1, worstPlaces, worstPlaces + 1, 1000} {
		p := &clusterPass{policy: &v1alpha1.ClusterIdempotencyPolicy{}}
		for i := range n {
			in := &v1alpha1.IdempotencyPolicy{}
			in.Status.Pods = &v1alpha1.PodsStatus{Matched: int32(i)}
			in.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "R", Message: strings.Repeat("ä", 1000)}}
			p.places = append(p.places, place{namespace: fmt.Sprintf("n%04d", i), made: in})
		}
		p.survey()
		if got := p.status.Namespaces.Failing; got != int32(n) || len(p.status.Worst) != min(n, worstPlaces) {
			t.Errorf("of %d namespaces %d fail, and %d are named", n, got, len(p.status.Worst))
		}
		for _, at := range p.status.Worst {
			if len(at.Message) > maxTrouble {
				t.Errorf("a message has %d bytes", len(at.Message))
			}
		}
		if n > 0 && p.status.Worst[0].Namespace != fmt.Sprintf("n%04d", n-1) {
			t.Errorf("of %d the worst is %s, which has not the most pods without protection", n, p.status.Worst[0].Namespace)
		}
	}
	ordered := &clusterPass{policy: &v1alpha1.ClusterIdempotencyPolicy{}}
	condition := func(stalled bool) *v1alpha1.IdempotencyPolicy {
		in := &v1alpha1.IdempotencyPolicy{}
		in.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "R"}}
		if stalled {
			in.Status.Conditions = append(in.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue})
		}
		return in
	}
	ordered.places = []place{{namespace: "a", made: condition(false)}, {namespace: "b", made: condition(true)}, {namespace: "c", reason: v1alpha1.ReasonNameTaken}}
	ordered.survey()
	var names []string
	for _, at := range ordered.status.Worst {
		names = append(names, at.Namespace)
	}
	if want := []string{"c", "b", "a"}; !slices.Equal(names, want) {
		t.Errorf("worst are %v, want %v", names, want)
	}
}

// TestClusterAdmission shows what the API server alone refuses of a cluster policy.
func TestClusterAdmission(t *testing.T) {
	name := "admission-" + strings.ToLower(rand.Text()[:10])
	cluster := func(change func(spec map[string]any)) *unstructured.Unstructured {
		u := unstructuredPolicy(t, "namespaceSelector: {matchLabels: {a: b}}")
		u.SetKind("ClusterIdempotencyPolicy")
		u.SetName(name)
		change(u.Object["spec"].(map[string]any))
		return u
	}
	set := func(field string, value any) func(map[string]any) {
		return func(spec map[string]any) { spec[field] = value }
	}
	two := map[string]any{"postgres": map[string]any{"dsnSecretRef": map[string]any{"name": "a"}, "adminDSNSecretRef": map[string]any{"name": "b"}}}
	from := map[string]any{"namespace": "secrets", "name": "db"}
	long := cluster(func(map[string]any) {})
	long.SetName(strings.Repeat("a", 64))
	longest := cluster(func(map[string]any) {})
	longest.SetName(strings.Repeat("a", 63))
	for _, tt := range []struct {
		object *unstructured.Unstructured
		want   string
		reason string
	}{
		{cluster(func(map[string]any) {}), "", "the shortest"},
		{longest, "", "the longest name"},
		{long, "longer than 63 characters", "a longer name"},
		{cluster(set("namespaceSelector", map[string]any{})), "name at least one label", "every namespace"},
		{cluster(func(spec map[string]any) { delete(spec, "namespaceSelector") }), "spec.namespaceSelector", "no namespace"},
		{cluster(set("selector", map[string]any{})), "name at least one label", "every pod"},
		{cluster(set("keyspace", "orders")), "leave it out", "namespaces share entries"},
		{cluster(set("store", two)), "", "two Secrets that are there already"},
		{cluster(func(spec map[string]any) { spec["store"], spec["secretSyncFrom"] = two, from }), "copies one Secret", "two Secrets of which one is copied"},
		{cluster(set("secretSyncFrom", from)), "", "a Secret that is copied"},
	} {
		err := server.client.Create(t.Context(), tt.object, client.DryRunAll)
		if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.reason, err, tt.want)
		}
	}
	sample := &unstructured.Unstructured{}
	readYAML(t, &sample.Object, "config", "samples", "cluster", "payments.yaml")
	if err := server.client.Create(t.Context(), sample, client.DryRunAll); err != nil {
		t.Errorf("the sample: %v", err)
	}
	stored := cluster(func(map[string]any) {})
	create(t, stored)
	t.Cleanup(func() { _ = server.client.Delete(t.Context(), stored) })
	for field, value := range map[string]any{
		"store":  map[string]any{"redis": map[string]any{"dsnSecretRef": map[string]any{"name": "db"}}},
		"client": map[string]any{"shared": map[string]any{}},
	} {
		changed := stored.DeepCopy()
		changed.Object["spec"].(map[string]any)[field] = value
		if err := server.client.Update(t.Context(), changed); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "create a new") {
			t.Errorf("another %s: %v", field, err)
		}
	}
}
