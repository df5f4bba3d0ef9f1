// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/policy"
)

// clusterPolicyValidator does for cluster policies what policyValidator does for policies.
type clusterPolicyValidator struct {
	// image is the sidecar's where the policy names none.
	image string
}

// ValidateCreate refuses what cannot work, naming the fields.
func (v *clusterPolicyValidator) ValidateCreate(_ context.Context, c *v1alpha1.ClusterIdempotencyPolicy) (admission.Warnings, error) {
	p := policy.InNamespace(c, "any")
	policy.Default(p)
	errs := policy.ValidateCluster(c)
	if len(errs) == 0 {
		errs = unfit(p, v.image)
	}
	if len(errs) > 0 {
		return nil, apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind("ClusterIdempotencyPolicy").GroupKind(), c.Name, errs)
	}
	return warnings(p), nil
}

// ValidateUpdate lets through what leaves the spec alone, and everything about a policy that is being deleted.
func (v *clusterPolicyValidator) ValidateUpdate(ctx context.Context, old, c *v1alpha1.ClusterIdempotencyPolicy) (admission.Warnings, error) {
	if c.DeletionTimestamp != nil || equality.Semantic.DeepEqual(old.Spec, c.Spec) {
		return nil, nil
	}
	return v.ValidateCreate(ctx, c)
}

// ValidateDelete allows.
func (v *clusterPolicyValidator) ValidateDelete(context.Context, *v1alpha1.ClusterIdempotencyPolicy) (admission.Warnings, error) {
	return nil, nil
}
