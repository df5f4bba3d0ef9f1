// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

const restartedAt = "kubectl.kubernetes.io/restartedAt"

// template is that of pods labelled app: payments and workload: name.
func template(name string) (*metav1.LabelSelector, corev1.PodTemplateSpec) {
	all := map[string]string{"app": "payments", "workload": name}
	return &metav1.LabelSelector{MatchLabels: all}, corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: all},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "registry.example.com/app:1"}}},
	}
}

// workload makes one with a pod that has no sidecar, and plays its controller: it is available.
func (w *world) workload(kind, name string) (client.Object, *corev1.Pod) {
	w.t.Helper()
	selector, template := template(name)
	at := metav1.ObjectMeta{Namespace: w.namespace, Name: name}
	var made, of client.Object
	switch kind {
	case "Deployment":
		deployment := &appsv1.Deployment{ObjectMeta: at, Spec: appsv1.DeploymentSpec{Selector: selector, Template: template}}
		create(w.t, deployment)
		set := &appsv1.ReplicaSet{ObjectMeta: at, Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template}}
		set.Name += "-1"
		set.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(deployment, appsv1.SchemeGroupVersion.WithKind(kind))}
		create(w.t, set)
		made, of = deployment, set
	case "StatefulSet":
		made = &appsv1.StatefulSet{ObjectMeta: at, Spec: appsv1.StatefulSetSpec{Selector: selector, Template: template}}
	case "DaemonSet":
		made = &appsv1.DaemonSet{ObjectMeta: at, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template}}
	}
	ofKind := "ReplicaSet"
	if of == nil {
		create(w.t, made)
		of, ofKind = made, kind
	}
	w.settle(made)
	pod := w.pod(name+"-1", selector.MatchLabels, func(pod *corev1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(of, appsv1.SchemeGroupVersion.WithKind(ofKind))}
	})
	return made, pod
}

// settle says that every pod of a workload is of its current template, and available.
func (w *world) settle(o client.Object) {
	w.t.Helper()
	if err := server.client.Get(w.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		w.t.Fatal(err)
	}
	status := fmt.Sprintf(`{"status":{"observedGeneration":%d,"replicas":1,"updatedReplicas":1,"readyReplicas":1,"availableReplicas":1}}`, o.GetGeneration())
	if _, is := o.(*appsv1.DaemonSet); is {
		status = fmt.Sprintf(`{"status":{"observedGeneration":%d,"desiredNumberScheduled":1,"updatedNumberScheduled":1,"numberAvailable":1}}`, o.GetGeneration())
	}
	if err := server.client.Status().Patch(w.t.Context(), o, client.RawPatch(types.MergePatchType, []byte(status))); err != nil {
		w.t.Fatal(err)
	}
}

// restarts is when a Deployment was restarted, or empty.
func (w *world) restarts(name string) string {
	w.t.Helper()
	d := &appsv1.Deployment{}
	if err := server.client.Get(w.t.Context(), types.NamespacedName{Namespace: w.namespace, Name: name}, d); err != nil {
		w.t.Fatal(err)
	}
	return d.Spec.Template.Annotations[restartedAt]
}

// says waits until Injected says something, and looks at the policy now and again.
func (w *world) says(policy, text string) {
	w.t.Helper()
	eventually(w.t, func() error {
		p, err := w.get(policy)
		if err != nil {
			return err
		}
		for _, c := range p.Status.Conditions {
			if c.Type == v1alpha1.ConditionInjected && strings.Contains(c.Message, text) {
				return nil
			}
		}
		w.nudge(policy)
		return fmt.Errorf("%q is not said: %s", text, describe(p))
	})
}

func TestRollout(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	aside := map[string]string{"workload": "aside"}
	w.policy("aside", func(p *v1alpha1.IdempotencyPolicy) { p.Spec.Selector.MatchLabels = aside }) // by default nothing is restarted
	w.workload("Deployment", "aside")
	w.says("aside", "run without the sidecar")
	a, podOfA := w.workload("Deployment", "a")
	w.workload("Deployment", "b")
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "of-b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"workload": "b"}}},
	}
	create(t, budget) // its status, zero, allows nothing
	p := w.policy("payments", func(p *v1alpha1.IdempotencyPolicy) {
		p.Spec.Rollout.Strategy = v1alpha1.RolloutRestart
		p.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "workload", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"aside"}}}
	})
	w.says("payments", `Deployment "a" is being restarted.`)
	w.another("payments")
	first := w.restarts("a")
	if first == "" || w.restarts("b") != "" {
		t.Errorf("a was restarted at %q, b at %q", first, w.restarts("b"))
	}

	// The Deployment's controller replaces the pod, and the webhook injects the new one.
	w.remove(podOfA)
	w.settle(a)
	w.injectedPod("a-2", p, sidecarImage)
	w.says("payments", `Deployment "b" waits: PodDisruptionBudget "of-b" allows no disruption now.`)
	if w.restarts("b") != "" {
		t.Error("b was restarted against its budget")
	}
	allow := fmt.Appendf(nil, `{"status":{"disruptionsAllowed":1,"currentHealthy":2,"desiredHealthy":1,"expectedPods":2,"observedGeneration":%d}}`, budget.Generation)
	if err := server.client.Status().Patch(t.Context(), budget, client.RawPatch(types.MergePatchType, allow)); err != nil {
		t.Fatal(err)
	}
	w.says("payments", `Deployment "b" is being restarted.`)

	// Its pod is replaced by one without the sidecar: that is not tried again.
	b := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "b"}}
	w.settle(b)
	w.says("payments", "No workload is left to restart that would help.")
	second := w.restarts("b")
	w.another("payments")
	if w.restarts("a") != first || w.restarts("b") != second {
		t.Error("a workload was restarted twice for one sidecar")
	}
	if w.restarts("aside") != "" {
		t.Error("a workload was restarted that nobody asked to")
	}
	w.awaitEvent("WorkloadRestarted")
}

// TestRolloutRights restarts each kind of workload with the rights that config/rbac has for it, and shows that without any one of them it is
// forbidden, which the policy says.
func TestRolloutRights(t *testing.T) {
	t.Parallel()
	role := &rbacv1.ClusterRole{}
	readYAML(t, role, "config", "rbac", "rollout_role.yaml")
	var rights []rbacv1.PolicyRule
	for _, rule := range role.Rules {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				rights = append(rights, rbacv1.PolicyRule{APIGroups: rule.APIGroups, Resources: []string{resource}, Verbs: []string{verb}})
			}
		}
	}
	for without := range len(rights) + 1 {
		reason, granted := "with every right", rights
		if without < len(rights) {
			reason = fmt.Sprintf("without %s of %s", rights[without].Verbs[0], rights[without].Resources[0])
			granted = slices.Delete(slices.Clone(rights), without, without+1)
		}
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			w := &world{t: t, namespace: newNamespace(t)}
			limited := w.limited(granted)
			pods := make([]corev1.Pod, 0, 3)
			for _, kind := range []string{"Deployment", "StatefulSet", "DaemonSet"} {
				_, pod := w.workload(kind, strings.ToLower(kind))
				pods = append(pods, *pod)
			}
			forbidden := 0
			for i := range pods {
				r := &Policies{Client: limited, Live: limited, Events: events.NewFakeRecorder(10), Clock: clock.RealClock{}, SidecarImage: sidecarImage}
				p := &pass{policy: &v1alpha1.IdempotencyPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "payments"}}, pods: pods}
				eventually(t, func() error {
					said, err := r.restart(t.Context(), p, pods[i:i+1])
					switch {
					case apierrors.IsForbidden(err) && without < len(rights):
						forbidden++
						return nil
					case err != nil:
						return err // the API server does not know the role yet
					case !strings.Contains(said, "is being restarted"):
						return errors.New(said)
					}
					return nil
				})
			}
			if (forbidden > 0) != (without < len(rights)) {
				t.Errorf("%d of %d restarts were forbidden", forbidden, len(pods))
			}
		})
	}
}

// limited is the client of somebody with certain rights in the namespace.
func (w *world) limited(rights []rbacv1.PolicyRule) client.Client {
	w.t.Helper()
	at := metav1.ObjectMeta{Namespace: w.namespace, Name: "restarter"}
	create(w.t, &rbacv1.Role{ObjectMeta: at, Rules: rights})
	create(w.t, &rbacv1.RoleBinding{
		ObjectMeta: at, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: at.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: w.namespace}},
	})
	config := rest.CopyConfig(server.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: w.namespace}
	limited, err := client.New(config, client.Options{Scheme: server.scheme})
	if err != nil {
		w.t.Fatal(err)
	}
	return limited
}

// TestSettled has a row for each thing that a rollout in the middle can show.
func TestSettled(t *testing.T) {
	done := appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 3, UpdatedReplicas: 3, AvailableReplicas: 3}
	for _, tt := range []struct {
		because string
		change  func(*appsv1.DeploymentStatus)
		want    bool
	}{
		{"all is done", func(*appsv1.DeploymentStatus) {}, true},
		{"its controller has not looked", func(s *appsv1.DeploymentStatus) { s.ObservedGeneration = 1 }, false},
		{"an old pod is there still", func(s *appsv1.DeploymentStatus) { s.Replicas = 4 }, false},
		{"a new pod is missing", func(s *appsv1.DeploymentStatus) { s.UpdatedReplicas = 2 }, false},
		{"a pod is not available", func(s *appsv1.DeploymentStatus) { s.AvailableReplicas = 2 }, false},
	} {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](3)}, Status: done}
		tt.change(&d.Status)
		if got := (&workload{"Deployment", d}).settled(); got != tt.want {
			t.Errorf("%s: settled is %t", tt.because, got)
		}
	}
}

func TestUnfit(t *testing.T) {
	for reason, o := range map[string]client.Object{
		"paused":   &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Paused: true}},
		"delete":   &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}}},
		"deleted:": &appsv1.DaemonSet{Spec: appsv1.DaemonSetSpec{UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}}},
	} {
		if got := (&workload{"", o}).unfit(); !strings.Contains(got, reason) {
			t.Errorf("%T: %q does not say %q", o, got, reason)
		}
	}
}

func TestTurn(t *testing.T) {
	a, b, now := types.NamespacedName{Name: "a"}, types.NamespacedName{Name: "b"}, time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	turn := &turn{}
	turn.end(b)
	for i, got := range []bool{
		turn.take(a, now), !turn.take(b, now), turn.take(a, now), turn.patient(a, now.Add(rolloutPatience-1)), !turn.patient(a, now.Add(rolloutPatience)),
		!turn.take(b, now.Add(rolloutPatience-1)), turn.take(b, now.Add(rolloutPatience)), !turn.patient(a, now.Add(rolloutPatience)),
	} {
		if !got {
			t.Errorf("step %d went wrong", i)
		}
	}
	turn.end(a)
	if turn.take(a, now) {
		t.Error("a ended the turn of b")
	}
	turn.end(b)
	if !turn.take(a, now) {
		t.Error("b did not end its turn")
	}
}
