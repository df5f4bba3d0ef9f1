// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/policy"
)

// Paths of the handlers, as config/webhook names them.
const (
	// PodPath injects; a pod that cannot be injected is let through, unless it is labelled enforced.
	PodPath = "/mutate-v1-pod"
	// EnforcePath injects; a pod that cannot be injected is denied.
	EnforcePath = "/enforce-v1-pod"
	// PolicyPath validates policies.
	PolicyPath = "/validate-idempotency-dev-v1alpha1-idempotencypolicy"
	// ClusterPolicyPath validates cluster policies.
	ClusterPolicyPath = "/validate-idempotency-dev-v1alpha1-clusteridempotencypolicy"
)

// selectorIndex is the field by which the cache finds the policies that a pod's labels can mean.
const selectorIndex = "selector"

// Options of Register.
type Options struct {
	// SidecarImage is the sidecar's image where the policy names none.
	SidecarImage string
	// Namespace is the operator's own, whose pods are left alone.
	Namespace string
	// Registerer takes the metrics; nil: controller-runtime's registry.
	Registerer prometheus.Registerer
	// Log is nil for the default logger.
	Log *slog.Logger
}

// Register adds the handlers to the manager's webhook server. Call it once per manager, on every replica, leader or not.
// The manager's scheme must know the policy and the pod.
//
// +kubebuilder:rbac:groups=idempotency.dev,resources=idempotencypolicies,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
func Register(mgr ctrl.Manager, o Options) error {
	reporter, err := newReporter(mgr.GetEventRecorder("idempotency-webhook"), cmp.Or(o.Registerer, prometheus.Registerer(metrics.Registry)))
	if err != nil {
		return err
	}
	// Ask for the informer now: a replica that does not lead would otherwise begin to fill its cache at its first pod.
	for _, object := range []client.Object{&v1alpha1.IdempotencyPolicy{}, namespaceMetadata()} {
		if _, err := mgr.GetCache().GetInformer(context.Background(), object, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("watch policies and namespaces: %w", err)
		}
	}
	err = mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.IdempotencyPolicy{}, selectorIndex, func(o client.Object) []string {
		p, ok := o.(*v1alpha1.IdempotencyPolicy)
		if !ok {
			return nil
		}
		return policy.SelectorKeys(p)
	})
	if err != nil {
		return fmt.Errorf("index policies: %w", err)
	}
	pods := podHandler{
		policies:  mgr.GetCache(),
		decoder:   admission.NewDecoder(mgr.GetScheme()),
		reporter:  reporter,
		log:       cmp.Or(o.Log, slog.Default()),
		image:     o.SidecarImage,
		namespace: o.Namespace,
	}
	enforced := pods
	enforced.enforce = true
	server := mgr.GetWebhookServer()
	server.Register(PodPath, &admission.Webhook{Handler: &pods})
	server.Register(EnforcePath, &admission.Webhook{Handler: &enforced})
	server.Register(PolicyPath, admission.WithValidator(mgr.GetScheme(), &policyValidator{image: o.SidecarImage}))
	server.Register(ClusterPolicyPath, admission.WithValidator(mgr.GetScheme(), &clusterPolicyValidator{image: o.SidecarImage}))
	return nil
}
