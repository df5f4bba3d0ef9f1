// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

const (
	// conflictWait gives the cache time to show what somebody else wrote.
	conflictWait = 200 * time.Millisecond
	// concurrency bounds the policies that are looked at at once. Most of a pass is waiting for a store.
	concurrency = 8
)

// CachedObjects limits what the manager's cache holds of other people's objects.
func CachedObjects() map[client.Object]cache.ByObject {
	ours := labels.SelectorFromSet(labels.Set{managedByLabel: fieldOwner})
	// The API server's own controller writes what Services say, and those are read already. Only what others write has news.
	byOthers, err := labels.NewRequirement(discoveryv1.LabelManagedBy, selection.NotIn, []string{"endpointslice-controller.k8s.io"})
	if err != nil {
		panic(err) // the requirement is a constant
	}
	strip := cache.TransformStripManagedFields()
	return map[client.Object]cache.ByObject{
		&v1alpha1.IdempotencyPolicy{}:        {Transform: strip},
		&v1alpha1.ClusterIdempotencyPolicy{}: {Transform: strip},
		&corev1.Pod{}:                        {Transform: StripPod},
		&corev1.ConfigMap{}:                  {Label: ours, Transform: strip},
		&corev1.Service{}:                    {Transform: strip},
		&discoveryv1.EndpointSlice{}:         {Label: labels.NewSelector().Add(*byOthers), Transform: strip},
	}
}

// SetupWithManager makes the leader's manager run the controller. What comes over wakes is looked at, too.
func (r *Policies) SetupWithManager(mgr ctrl.Manager, wakes ...<-chan event.GenericEvent) error {
	inNamespace := handler.EnqueueRequestsFromMapFunc(r.inNamespace)
	b := ctrl.NewControllerManagedBy(mgr).
		Named("policy").
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency}).
		// A new policy may take pods from its siblings, and a deleted one hands them over.
		Watches(&v1alpha1.IdempotencyPolicy{}, inNamespace, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&corev1.Pod{}, inNamespace, builder.WithPredicates(podChanged())).
		Watches(&corev1.Service{}, inNamespace).
		Watches(&discoveryv1.EndpointSlice{}, inNamespace).
		WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.policiesIn(ctx, o.GetName())
		}), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&corev1.ConfigMap{}, handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), &v1alpha1.IdempotencyPolicy{}, handler.OnlyControllerOwner()))
	for _, wake := range wakes {
		b = b.WatchesRawSource(source.Channel(wake, &handler.EnqueueRequestForObject{}))
	}
	return b.Complete(r)
}

// inNamespace names every policy that lives beside an object, and the object itself where it is a policy: a deleted one is not listed any more.
func (r *Policies) inNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	requests := r.policiesIn(ctx, o.GetNamespace())
	if _, is := o.(*v1alpha1.IdempotencyPolicy); is {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)})
	}
	return requests
}

func (r *Policies) policiesIn(ctx context.Context, namespace string) []reconcile.Request {
	list := &v1alpha1.IdempotencyPolicyList{}
	if err := r.Client.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil // the cache is being stopped
	}
	requests := make([]reconcile.Request, len(list.Items))
	for i := range list.Items {
		requests[i].NamespacedName = client.ObjectKeyFromObject(&list.Items[i])
	}
	return requests
}

// podChanged lets through what a policy's conditions can depend on. Most changes of a pod are to the status of its containers.
func podChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*corev1.Pod)
		after, okToo := e.ObjectNew.(*corev1.Pod)
		return !ok || !okToo || live(before) != live(after) || serves(before) != serves(after) || len(before.Status.PodIPs) != len(after.Status.PodIPs) ||
			!labels.Equals(before.Labels, after.Labels) || !labels.Equals(before.Annotations, after.Annotations)
	}}
}
