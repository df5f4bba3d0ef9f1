// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject"
)

const (
	// rolloutLook is how often a workload is looked at that is being restarted, or has to wait.
	rolloutLook = 10 * time.Second
	// rolloutPatience is how long one workload that does not become available keeps others from being restarted.
	rolloutPatience = 10 * time.Minute
)

// rollout restarts workloads whose pods lack the current sidecar, where the policy asks for it. It adds to the condition Injected what it does.
//
// One workload of the cluster is restarted at a time, and each once for each sidecar: pods that lack it then lack it for another reason, such as
// an admission webhook that is away, and restarting them again and again would only harm. What was restarted for which sidecar is
// written on the workload in the same patch, so that no crash restarts twice.
func (r *Policies) rollout(ctx context.Context, p *pass) error {
	name := client.ObjectKeyFromObject(p.policy)
	stale := p.stale(inject.FromPolicy(p.policy, r.SidecarImage))
	if p.policy.Spec.Rollout.Strategy != v1alpha1.RolloutRestart || len(stale) == 0 || !p.worthARestart() {
		r.turn.end(name)
		return nil
	}
	report, err := r.restart(ctx, p, stale)
	if apierrors.IsForbidden(err) {
		report, err = fmt.Sprintf("The operator may not restart workloads here: kubectl create rolebinding idempotency-operator-rollout --clusterrole=idempotency-operator-rollout --serviceaccount=%s:idempotency-operator --namespace=%s",
			cmp.Or(r.Namespace, "idempotency-system"), name.Namespace), nil
		r.turn.end(name)
	}
	if err != nil {
		return err
	}
	if c := p.condition(v1alpha1.ConditionInjected); report != "" && c != nil {
		p.set(c.Type, c.Status, c.Reason, c.Message+" "+report)
	}
	p.lookAgain(rolloutLook)
	return nil
}

// worthARestart: new pods would get a sidecar that works.
func (p *pass) worthARestart() bool {
	return p.enabled && meta.IsStatusConditionTrue(p.status.Conditions, v1alpha1.ConditionAccepted) &&
		meta.IsStatusConditionTrue(p.status.Conditions, v1alpha1.ConditionStoreHealthy)
}

// stale are the pods of this policy that could carry the current sidecar and do not.
func (p *pass) stale(sidecar inject.Sidecar) []corev1.Pod {
	return slices.DeleteFunc(p.matched(), func(pod corev1.Pod) bool {
		if inject.Carries(sidecar, &pod) {
			return true
		}
		_, err := inject.Pod(sidecar, &pod)
		return err != nil
	})
}

// restart takes the next step, and says in a stable sentence how far it is.
func (r *Policies) restart(ctx context.Context, p *pass, stale []corev1.Pod) (string, error) {
	name, hash := client.ObjectKeyFromObject(p.policy), inject.Hash(inject.FromPolicy(p.policy, r.SidecarImage))
	workloads, err := r.workloadsOf(ctx, stale)
	if err != nil {
		return "", err
	}
	var left []*workload
	for _, w := range workloads {
		switch {
		case w.restartedFor() != hash:
			left = append(left, w)
		case !w.settled():
			if !r.turn.patient(name, r.Clock.Now()) {
				return w.String() + " was restarted, and does not become available: others wait no longer for it.", nil
			}
			return w.String() + " is being restarted.", nil
		}
	}
	if len(left) == 0 {
		r.turn.end(name)
		return "No workload is left to restart that would help.", nil
	}
	next, held, err := r.next(ctx, left, p.pods)
	switch {
	case err != nil:
		return "", err
	case next == nil:
		r.turn.end(name)
		return held, nil
	case !r.turn.take(name, r.Clock.Now()):
		return next.String() + " waits until a workload of another policy is restarted.", nil
	}
	if err := r.Client.Patch(ctx, next.object, next.restart(hash, r.Clock.Now()), client.FieldOwner(fieldOwner)); err != nil {
		return "", fmt.Errorf("patch %s: %w", next, err)
	}
	r.Events.Eventf(p.policy, next.object, corev1.EventTypeNormal, "WorkloadRestarted", "Restart", "Restarted %s, whose pods lack the current sidecar.", next)
	return next.String() + " is being restarted.", nil
}

// next is the first workload that can be restarted now; without one, held says why the first cannot.
func (r *Policies) next(ctx context.Context, left []*workload, pods []corev1.Pod) (next *workload, held string, err error) {
	for _, w := range left {
		reason, err := r.heldBack(ctx, w, pods)
		if err != nil {
			return nil, "", err
		}
		if reason == "" {
			return w, "", nil
		}
		held = cmp.Or(held, w.String()+" "+reason)
	}
	return nil, held, nil
}

// heldBack says why a workload cannot be restarted now, or nothing.
func (r *Policies) heldBack(ctx context.Context, w *workload, pods []corev1.Pod) (string, error) {
	if reason := w.unfit(); reason != "" {
		return reason, nil
	}
	if !w.settled() {
		return "is not available, or in the middle of a rollout: it is restarted after that.", nil
	}
	budgets := &policyv1.PodDisruptionBudgetList{}
	if err := r.Live.List(ctx, budgets, client.InNamespace(w.object.GetNamespace())); err != nil {
		return "", fmt.Errorf("list poddisruptionbudgets: %w", err)
	}
	for i := range budgets.Items {
		budget := &budgets.Items[i]
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err != nil {
			return "", fmt.Errorf("read selector of poddisruptionbudget %s: %w", budget.Name, err)
		}
		covered := slices.ContainsFunc(pods, func(pod corev1.Pod) bool {
			return w.selects(pod.Labels) && selector.Matches(labels.Set(pod.Labels))
		})
		if covered && (budget.Status.DisruptionsAllowed < 1 || budget.Status.ObservedGeneration < budget.Generation) {
			return fmt.Sprintf("waits: PodDisruptionBudget %q allows no disruption now.", budget.Name), nil
		}
	}
	return "", nil
}

// workloadsOf finds what made the pods, in order of kind and name. Pods that nothing restarts are left out.
func (r *Policies) workloadsOf(ctx context.Context, pods []corev1.Pod) ([]*workload, error) {
	var found []*workload
	seen := map[owner]bool{}
	for i := range pods {
		of, err := r.ownerOf(ctx, &pods[i], seen)
		if err != nil {
			return nil, err
		}
		if of.name == "" || seen[of] {
			continue
		}
		seen[of] = true
		w := newWorkload(of.kind)
		if w == nil {
			continue
		}
		err = r.Live.Get(ctx, client.ObjectKey{Namespace: pods[i].Namespace, Name: of.name}, w.object)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("get %s %s: %w", of.kind, of.name, err)
		}
		found = append(found, w)
	}
	slices.SortFunc(found, func(a, b *workload) int { return cmp.Compare(a.String(), b.String()) })
	return found, nil
}

type owner struct{ kind, name string }

// ownerOf is the workload that a pod belongs to: the owner of its ReplicaSet, if it has one. A ReplicaSet in seen has been looked at.
func (r *Policies) ownerOf(ctx context.Context, pod *corev1.Pod, seen map[owner]bool) (owner, error) {
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil {
		return owner{}, nil
	}
	if ref.Kind != "ReplicaSet" {
		return owner{ref.Kind, ref.Name}, nil
	}
	if set := (owner{ref.Kind, ref.Name}); seen[set] {
		return owner{}, nil
	}
	seen[owner{ref.Kind, ref.Name}] = true
	set := &metav1.PartialObjectMetadata{}
	set.SetGroupVersionKind(replicaSets())
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: ref.Name}, set)
	if apierrors.IsNotFound(err) {
		return owner{}, nil
	}
	if err != nil {
		return owner{}, fmt.Errorf("get replicaset %s: %w", ref.Name, err)
	}
	if ref = metav1.GetControllerOf(set); ref == nil {
		return owner{}, nil
	}
	return owner{ref.Kind, ref.Name}, nil
}
