// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/policy"
)

// writers bounds how many namespaces are written to at once.
const writers = 8

// distribute makes every selected namespace have the policy, and no other have it. Nothing is written that is as it should be.
// What goes wrong in one namespace holds up no other. It fails with all that should be tried again.
func (r *ClusterPolicies) distribute(ctx context.Context, p *clusterPass) error {
	errs := make([]error, len(p.places)+len(p.strays))
	each(len(errs), func(i int) {
		if stray := i - len(p.places); stray >= 0 {
			errs[i] = r.remove(ctx, p.strays[stray])
			return
		}
		at := &p.places[i]
		errs[i] = r.settle(ctx, p, at)
		if errs[i] != nil && !outdated(errs[i]) {
			at.reason, at.message = v1alpha1.ReasonApplyFailed, errs[i].Error()
		}
	})
	return p.refused(errs)
}

// each calls f for 0 to n-1, a bounded number at once, and returns when all have returned.
func each(n int, f func(int)) {
	todo := make(chan int)
	done := make(chan struct{})
	for range writers {
		go func() {
			defer func() { done <- struct{}{} }()
			for i := range todo {
				f(i)
			}
		}()
	}
	for i := range n {
		todo <- i
	}
	close(todo)
	for range writers {
		<-done
	}
}

// outdated: the cache has yet to show what the API server has. Nothing is wrong.
func outdated(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) ||
		apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// refused joins the errors that are not about an outdated cache, and asks for another look for those that are.
func (p *clusterPass) refused(errs []error) error {
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool {
		if err != nil && outdated(err) {
			p.lookAgain(conflictWait)
			return true
		}
		return err == nil
	})...)
}

// settle makes a namespace have the policy as it is written.
func (r *ClusterPolicies) settle(ctx context.Context, p *clusterPass, at *place) error {
	wanted := policy.InNamespace(p.policy, at.namespace)
	if at.made == nil {
		return r.make(ctx, wanted, at)
	}
	if at.made.DeletionTimestamp != nil {
		return nil // somebody deletes it; that it is gone brings us back
	}
	changed := at.made.DeepCopy()
	changed.Spec, changed.OwnerReferences = wanted.Spec, wanted.OwnerReferences
	if changed.Labels == nil {
		changed.Labels = map[string]string{}
	}
	maps.Copy(changed.Labels, wanted.Labels)
	if from := policy.Entries(at.made); from != policy.Entries(changed) { // somebody moved them, and they are where they were before
		if changed.Annotations == nil {
			changed.Annotations = map[string]string{}
		}
		changed.Annotations[v1alpha1.AbandonAnnotation] = from
	}
	if equality.Semantic.DeepEqual(at.made, changed) {
		return nil
	}
	// A merge patch replaces lists, and takes away what somebody added.
	patch := client.MergeFromWithOptions(at.made, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, changed, patch, client.FieldOwner(fieldOwner)); err != nil {
		return fmt.Errorf("patch policy %s: %w", changed.Name, err)
	}
	at.made = changed
	return nil
}

// make creates the policy, unless somebody has one of that name. One that has lost its owner, and still has its label, is taken back.
func (r *ClusterPolicies) make(ctx context.Context, wanted *v1alpha1.IdempotencyPolicy, at *place) error {
	found := &v1alpha1.IdempotencyPolicy{}
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(wanted), found)
	switch {
	case apierrors.IsNotFound(err):
		if err := r.Client.Create(ctx, wanted, client.FieldOwner(fieldOwner)); err != nil {
			return fmt.Errorf("create policy %s: %w", wanted.Name, err)
		}
		at.made = wanted
		return nil
	case err != nil:
		return fmt.Errorf("get policy %s: %w", wanted.Name, err)
	case found.Labels[v1alpha1.ClusterPolicyLabel] != wanted.Labels[v1alpha1.ClusterPolicyLabel]:
		at.reason = v1alpha1.ReasonNameTaken
		at.message = fmt.Sprintf("somebody wrote a policy %q, which is the name of the one that would be made here: give it another name", wanted.Name)
		return nil
	}
	taken := found.DeepCopy()
	taken.Spec, taken.OwnerReferences = wanted.Spec, wanted.OwnerReferences
	patch := client.MergeFromWithOptions(found, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, taken, patch, client.FieldOwner(fieldOwner)); err != nil {
		return fmt.Errorf("patch policy %s: %w", wanted.Name, err)
	}
	at.made = taken
	return nil
}

// remove deletes a policy whose namespace is no longer selected. What becomes of its keyspace its deletionPolicy says.
func (r *ClusterPolicies) remove(ctx context.Context, stray *v1alpha1.IdempotencyPolicy) error {
	if stray.DeletionTimestamp != nil {
		return nil
	}
	if err := r.Client.Delete(ctx, stray, client.Preconditions{UID: ptr.To(stray.UID)}); err != nil {
		return fmt.Errorf("delete policy %s of namespace %s: %w", stray.Name, stray.Namespace, err)
	}
	return nil
}

// sort makes passes alike.
func (p *clusterPass) sort() {
	slices.SortFunc(p.places, func(a, b place) int { return cmp.Compare(a.namespace, b.namespace) })
	slices.SortFunc(p.strays, func(a, b *v1alpha1.IdempotencyPolicy) int { return cmp.Compare(a.Namespace, b.Namespace) })
}
