// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

// workload is a Deployment, a StatefulSet or a DaemonSet.
type workload struct {
	kind   string
	object client.Object
}

func newWorkload(kind string) *workload {
	switch kind {
	case "Deployment":
		return &workload{kind, &appsv1.Deployment{}}
	case "StatefulSet":
		return &workload{kind, &appsv1.StatefulSet{}}
	case "DaemonSet":
		return &workload{kind, &appsv1.DaemonSet{}}
	}
	return nil
}

func replicaSets() schema.GroupVersionKind { return appsv1.SchemeGroupVersion.WithKind("ReplicaSet") }

func (w *workload) String() string { return fmt.Sprintf("%s %q", w.kind, w.object.GetName()) }

// restartedFor is the sidecar that the workload was last restarted for.
func (w *workload) restartedFor() string {
	return w.object.GetAnnotations()[v1alpha1.RestartedAnnotation]
}

// restart is the change that kubectl rollout restart makes, and the note that it was made.
func (w *workload) restart(sidecar string, now time.Time) client.Patch {
	text := fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"annotations":{%q:%q}},"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":%q}}}}}`,
		w.object.GetResourceVersion(), v1alpha1.RestartedAnnotation, sidecar, now.UTC().Format(time.RFC3339))
	return client.RawPatch(types.MergePatchType, []byte(text))
}

// unfit says why a restart would not replace the pods, or nothing.
func (w *workload) unfit() string {
	const byHand = "replaces pods only when they are deleted: delete them."
	switch o := w.object.(type) {
	case *appsv1.Deployment:
		if o.Spec.Paused {
			return "is paused: resume it."
		}
	case *appsv1.StatefulSet:
		if o.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
			return byHand
		}
	case *appsv1.DaemonSet:
		if o.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
			return byHand
		}
	}
	return ""
}

// settled: every pod is of the current template, and available.
func (w *workload) settled() bool {
	var observed int64
	var want, all, updated, available int32
	switch o := w.object.(type) {
	case *appsv1.Deployment:
		observed, want, all, updated, available = o.Status.ObservedGeneration, ptr.Deref(o.Spec.Replicas, 1), o.Status.Replicas, o.Status.UpdatedReplicas, o.Status.AvailableReplicas
	case *appsv1.StatefulSet:
		observed, want, all, updated, available = o.Status.ObservedGeneration, ptr.Deref(o.Spec.Replicas, 1), o.Status.Replicas, o.Status.UpdatedReplicas, o.Status.AvailableReplicas
	case *appsv1.DaemonSet:
		want = o.Status.DesiredNumberScheduled
		observed, all, updated, available = o.Status.ObservedGeneration, want, o.Status.UpdatedNumberScheduled, o.Status.NumberAvailable
	}
	return observed >= w.object.GetGeneration() && all == want && updated == want && available == want
}

// selects reports whether a pod with these labels is the workload's.
func (w *workload) selects(pod map[string]string) bool {
	var selector *metav1.LabelSelector
	switch o := w.object.(type) {
	case *appsv1.Deployment:
		selector = o.Spec.Selector
	case *appsv1.StatefulSet:
		selector = o.Spec.Selector
	case *appsv1.DaemonSet:
		selector = o.Spec.Selector
	}
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && s.Matches(labels.Set(pod)) // the API server has checked the selector
}

// turn is whose workload is being restarted. The zero turn is nobody's.
type turn struct {
	mu    sync.Mutex
	whose types.NamespacedName
	since time.Time
}

// take makes it the policy's turn, unless it is another's who has not had it for long.
func (t *turn) take(policy types.NamespacedName, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.whose != (types.NamespacedName{}) && t.whose != policy && now.Sub(t.since) < rolloutPatience {
		return false
	}
	t.whose, t.since = policy, now
	return true
}

// patient keeps the turn of a policy whose workload is on its way; false when that takes too long. A manager that has just begun to lead learns here
// whose turn it is.
func (t *turn) patient(policy types.NamespacedName, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.whose == (types.NamespacedName{}) {
		t.whose, t.since = policy, now
	}
	return t.whose == policy && now.Sub(t.since) < rolloutPatience
}

// end ends the policy's turn, if it is that.
func (t *turn) end(policy types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.whose == policy {
		t.whose = types.NamespacedName{}
	}
}
