// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/policy"
)

const (
	// madeIndex is the field by which the cache finds what was made for a cluster policy.
	madeIndex = "madeFor"
	// gatherFor is how long news of the policies in namespaces is gathered: a thousand that become ready are a few looks, not a thousand.
	gatherFor = time.Second
	// retryFirst and retryLast bound the time before what the API server refused is tried again.
	retryFirst, retryLast = 100 * time.Millisecond, time.Minute
)

// SetupWithManager makes the leader's manager run the controller.
func (r *ClusterPolicies) SetupWithManager(mgr ctrl.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.IdempotencyPolicy{}, madeIndex, func(o client.Object) []string {
		if p, ok := o.(*v1alpha1.IdempotencyPolicy); ok && policy.ClusterPolicyOf(p) != "" {
			return []string{policy.ClusterPolicyOf(p)}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("index policies: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("clusterpolicy").
		WithOptions(controller.Options{RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](retryFirst, retryLast)}).
		For(&v1alpha1.ClusterIdempotencyPolicy{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.all), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&v1alpha1.IdempotencyPolicy{}, madeChanged()).
		Complete(r)
}

// all names every cluster policy: which of them select a namespace, or did, they find out themselves.
func (r *ClusterPolicies) all(ctx context.Context, _ client.Object) []reconcile.Request {
	list := &v1alpha1.ClusterIdempotencyPolicyList{}
	if err := r.Client.List(ctx, list); err != nil {
		return nil // the cache is being stopped
	}
	requests := make([]reconcile.Request, len(list.Items))
	for i := range list.Items {
		requests[i].Name = list.Items[i].Name
	}
	return requests
}

// madeChanged names the cluster policy for which a policy was made, or whose name in a namespace it takes. Both are told by its name. What
// somebody changed is put back at once; what became of it can wait.
func madeChanged() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	enqueue := func(o client.Object, q queue, after time.Duration) {
		if cluster := policy.ClusterNameOf(o.GetName()); cluster != "" {
			q.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Name: cluster}}, after)
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { enqueue(e.Object, q, gatherFor) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { enqueue(e.Object, q, 0) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			before, ok := e.ObjectOld.(*v1alpha1.IdempotencyPolicy)
			after, okToo := e.ObjectNew.(*v1alpha1.IdempotencyPolicy)
			if ok && okToo && before.Generation == after.Generation && policy.ClusterPolicyOf(before) == policy.ClusterPolicyOf(after) &&
				before.Labels[v1alpha1.ClusterPolicyLabel] == after.Labels[v1alpha1.ClusterPolicyLabel] {
				enqueue(e.ObjectNew, q, gatherFor)
				return
			}
			enqueue(e.ObjectNew, q, 0)
		},
	}
}
