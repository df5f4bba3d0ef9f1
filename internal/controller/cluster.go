// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject"
	"github.com/idempotency-dev/operator/internal/policy"
)

// +kubebuilder:rbac:groups=idempotency.dev,resources=clusteridempotencypolicies,verbs=list;watch
// +kubebuilder:rbac:groups=idempotency.dev,resources=clusteridempotencypolicies/status,verbs=patch
// +kubebuilder:rbac:groups=idempotency.dev,resources=idempotencypolicies,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=list;watch

// ClusterPolicies reconciles ClusterIdempotencyPolicies: each is a policy in every namespace that it selects, which Policies then reconciles as
// any other.
type ClusterPolicies struct {
	// Client reads from the manager's cache, except for Secrets.
	Client client.Client
	// Events records what changed.
	Events events.EventRecorder
	// Clock is the operator's.
	Clock clock.Clock
	// SidecarImage is the sidecar's image where a policy names none.
	SidecarImage string
	// Namespace is the operator's own, which is never selected.
	Namespace string
	// SecretsFrom is the namespace whose Secrets may be copied into others; "": none may.
	SecretsFrom string

	// copies of Secrets that were looked at lately.
	copies copies
}

// clusterPass is one look at one cluster policy. Phases read what is in it, and change only its status and its places.
type clusterPass struct {
	policy *v1alpha1.ClusterIdempotencyPolicy
	// places are the selected namespaces, by name.
	places []place
	// strays are the policies that were made in namespaces that are no longer selected.
	strays []*v1alpha1.IdempotencyPolicy
	// secret is what is to be copied; nil: nothing is.
	secret *copied

	status v1alpha1.ClusterIdempotencyPolicyStatus
	// again is when to look again; zero: when something changes.
	again time.Duration
}

// place is a selected namespace.
type place struct {
	namespace string
	// enabled: the namespace opts in to injection.
	enabled bool
	// made is the namespace's policy as last seen; nil while there is none.
	made *v1alpha1.IdempotencyPolicy
	// reason and message say what keeps the policy, or the copy of the Secret, from being there.
	reason, message string
}

// Reconcile looks at one cluster policy.
func (r *ClusterPolicies) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	stored := &v1alpha1.ClusterIdempotencyPolicy{}
	err := r.Client.Get(ctx, req.NamespacedName, stored)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("get cluster policy %s: %w", req.Name, err)
	}
	if apierrors.IsNotFound(err) || stored.DeletionTimestamp != nil {
		r.copies.forget(req.Name) // what was made is owned, and goes by itself
		return ctrl.Result{}, nil
	}
	p, err := r.observe(ctx, stored)
	if err != nil {
		return ctrl.Result{}, err
	}
	if err := r.accept(ctx, p); err != nil {
		return ctrl.Result{}, err
	}
	var refused error
	if p.accepted() {
		refused = errors.Join(r.distribute(ctx, p), r.copySecret(ctx, p))
	}
	p.distributed()
	p.survey()
	p.ready()
	err = r.write(ctx, stored, p.status)
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: conflictWait}, nil // as in Policies.Reconcile
	}
	if err = errors.Join(err, refused); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: p.again}, nil
}

// observe reads which namespaces are selected, and what was made there before.
func (r *ClusterPolicies) observe(ctx context.Context, stored *v1alpha1.ClusterIdempotencyPolicy) (*clusterPass, error) {
	p := &clusterPass{policy: stored.DeepCopy(), status: *stored.Status.DeepCopy()}
	// A selector that is not valid selects nothing here, and accept says so.
	selector, err := metav1.LabelSelectorAsSelector(&stored.Spec.NamespaceSelector)
	if err != nil || selector.Empty() {
		selector = labels.Nothing()
	}
	namespaces := &metav1.PartialObjectMetadataList{}
	namespaces.SetGroupVersionKind(namespaceMetadata().GroupVersionKind())
	if err := r.Client.List(ctx, namespaces, client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	made := &v1alpha1.IdempotencyPolicyList{}
	if err := r.Client.List(ctx, made, client.MatchingFields{madeIndex: stored.Name}); err != nil {
		return nil, fmt.Errorf("list policies: %w", err)
	}
	by := make(map[string]*v1alpha1.IdempotencyPolicy, len(made.Items))
	for i := range made.Items {
		if made.Items[i].Name == policy.NameInNamespace(stored.Name) { // anybody can say that a policy is ours
			by[made.Items[i].Namespace] = &made.Items[i]
		}
	}
	for i := range namespaces.Items {
		n := &namespaces.Items[i]
		if n.DeletionTimestamp != nil || n.Name == metav1.NamespaceSystem || n.Name == r.Namespace {
			continue
		}
		p.places = append(p.places, place{namespace: n.Name, enabled: n.Labels[v1alpha1.InjectionLabel] == v1alpha1.InjectionEnabled, made: by[n.Name]})
		delete(by, n.Name)
	}
	p.strays = slices.Collect(maps.Values(by))
	p.sort()
	return p, nil
}

// accept owns the condition Accepted: the policy is valid, and the Secret that it wants copied may be, and is there.
// What is in the namespaces stays as it is while it is not.
func (r *ClusterPolicies) accept(ctx context.Context, p *clusterPass) error {
	if message := r.invalid(p.policy); message != "" {
		p.set(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalid, message)
		return nil
	}
	secret, err := r.source(ctx, p)
	var missing *SecretError
	if errors.As(err, &missing) {
		p.set(v1alpha1.ConditionAccepted, metav1.ConditionFalse, missing.Reason, missing.Message)
		return nil
	}
	if err != nil {
		return err
	}
	p.secret = secret
	p.set(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "The policy is valid and in force.")
	return nil
}

// invalid says what keeps the policy from working, or nothing.
func (r *ClusterPolicies) invalid(c *v1alpha1.ClusterIdempotencyPolicy) string {
	if errs := policy.ValidateCluster(c); len(errs) > 0 {
		return errs.ToAggregate().Error()
	}
	p := policy.InNamespace(c, "any")
	policy.Default(p)
	if refusal := inject.FromPolicy(p, r.SidecarImage).Validate(); refusal != nil {
		return refusal.Error()
	}
	return ""
}

func (p *clusterPass) set(condition string, status metav1.ConditionStatus, reason, message string) {
	setCondition(&p.status.Conditions, p.policy.Generation, condition, status, reason, message)
}

// lookAgain asks for another pass within d.
func (p *clusterPass) lookAgain(d time.Duration) {
	if p.again == 0 || d < p.again {
		p.again = d
	}
}

// write patches the status if it differs from what stored has, and tells of conditions that turned.
func (r *ClusterPolicies) write(ctx context.Context, stored *v1alpha1.ClusterIdempotencyPolicy, status v1alpha1.ClusterIdempotencyPolicyStatus) error {
	if equality.Semantic.DeepEqual(stored.Status, status) {
		return nil
	}
	changed := stored.DeepCopy()
	changed.Status = status
	patch := client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Status().Patch(ctx, changed, patch, client.FieldOwner(fieldOwner)); err != nil {
		return fmt.Errorf("patch status: %w", err)
	}
	tell(r.Events, stored, stored.Status.Conditions, status.Conditions)
	return nil
}
