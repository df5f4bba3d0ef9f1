// SPDX-License-Identifier: Apache-2.0

// Package controller reconciles policies. Reconcile is a table of contents over phases: each is in a file of its own, looks at one part of the
// world, and owns one condition. Phases change memory only; one patch at the end writes the status, if it differs.
package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject"
	"github.com/idempotency-dev/operator/internal/policy"
)

// +kubebuilder:rbac:groups=idempotency.dev,resources=idempotencypolicies,verbs=list;watch;patch
// +kubebuilder:rbac:groups=idempotency.dev,resources=idempotencypolicies/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=list;watch;create;patch
// +kubebuilder:rbac:groups="",resources=pods;services;namespaces,verbs=list;watch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Policies reconciles IdempotencyPolicies.
type Policies struct {
	// Client reads from the manager's cache, except for Secrets.
	Client client.Client
	// Events records what changed.
	Events events.EventRecorder
	// Stores are shared with the maintenance of partitions.
	Stores *Stores
	// Reports is the maintenance of partitions.
	Reports Reports
	// Live reads from the API server what is needed too seldom to be cached: the workloads that are to be restarted.
	Live client.Reader
	// Sidecars are asked which configuration they use; nil: nobody is asked, and there is no condition Configured.
	Sidecars *Sidecars
	// Clock is the operator's, which the stores' are compared with.
	Clock clock.Clock
	// SidecarImage is the sidecar's image where a policy names none.
	SidecarImage string
	// Namespace is the operator's own, where nothing is injected.
	Namespace string
	// ClusterID tells this cluster from others that use the same database: the uid of the namespace kube-system.
	ClusterID string

	// turn is whose workload is being restarted.
	turn turn
}

// Reconcile looks at one policy.
func (r *Policies) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	stored := &v1alpha1.IdempotencyPolicy{}
	if err := r.Client.Get(ctx, req.NamespacedName, stored); err != nil {
		if apierrors.IsNotFound(err) {
			r.Stores.Forget(req.NamespacedName)
			r.turn.end(req.NamespacedName)
			if r.Sidecars != nil {
				r.Sidecars.Forget(req.NamespacedName)
			}
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("get policy %s: %w", req.NamespacedName, err)
	}
	p, err := r.observe(ctx, stored)
	if err != nil {
		return ctrl.Result{}, err
	}
	if stored.DeletionTimestamp != nil {
		err = r.delete(ctx, stored, p)
	} else {
		err = r.advance(ctx, stored, p)
	}
	if apierrors.IsConflict(err) {
		// The cache has yet to show a later version; that version's event is a pass of its own. This one is for the case that it has come already.
		return ctrl.Result{RequeueAfter: conflictWait}, nil
	}
	return ctrl.Result{RequeueAfter: p.again}, err
}

// observe reads what phases need to know of the namespace.
func (r *Policies) observe(ctx context.Context, stored *v1alpha1.IdempotencyPolicy) (*pass, error) {
	p := &pass{policy: stored.DeepCopy(), status: *stored.Status.DeepCopy()}
	policy.Default(p.policy)
	here := client.InNamespace(stored.Namespace)
	siblings, pods := &v1alpha1.IdempotencyPolicyList{}, &corev1.PodList{}
	if err := r.Client.List(ctx, siblings, here); err != nil {
		return nil, fmt.Errorf("list policies: %w", err)
	}
	if err := r.Client.List(ctx, pods, here); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	p.siblings = siblings.Items
	for i := range pods.Items {
		if live(&pods.Items[i]) {
			p.pods = append(p.pods, pods.Items[i])
		}
	}
	namespace := namespaceMetadata()
	if err := r.Client.Get(ctx, types.NamespacedName{Name: stored.Namespace}, namespace); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get namespace %s: %w", stored.Namespace, err)
	}
	p.podSecurity = namespace.Labels[inject.PodSecurityLabel]
	p.enabled = namespace.Labels[v1alpha1.InjectionLabel] == v1alpha1.InjectionEnabled &&
		stored.Namespace != metav1.NamespaceSystem && stored.Namespace != r.Namespace
	return p, nil
}

// advance is the table of contents.
func (r *Policies) advance(ctx context.Context, stored *v1alpha1.IdempotencyPolicy, p *pass) error {
	if err := r.accept(ctx, p); err != nil {
		return err
	}
	stored, err := r.hold(ctx, stored, p)
	if err != nil {
		return err
	}
	if err := r.configure(ctx, p); err != nil {
		return err
	}
	r.store(ctx, p)
	r.partitions(p)
	r.injected(p)
	if err := r.rollout(ctx, p); err != nil {
		return err
	}
	r.configured(ctx, p)
	if err := r.traffic(ctx, p); err != nil {
		return err
	}
	p.ready()
	return r.write(ctx, stored, p.status)
}

// namespaceMetadata is a namespace of which only the metadata is read and cached.
func namespaceMetadata() *metav1.PartialObjectMetadata {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return namespace
}
