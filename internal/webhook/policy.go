// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject"
	"github.com/idempotency-dev/operator/internal/policy"
)

// policyValidator refuses policies that cannot work and that the schema alone cannot tell.
type policyValidator struct {
	// image is the sidecar's where the policy names none.
	image string
}

// ValidateCreate refuses what cannot work, naming the fields.
func (v *policyValidator) ValidateCreate(_ context.Context, p *v1alpha1.IdempotencyPolicy) (admission.Warnings, error) {
	p = p.DeepCopy()
	policy.Default(p)
	errs := policy.Validate(p)
	if len(errs) == 0 {
		errs = unfit(p, v.image)
	}
	if len(errs) > 0 {
		return nil, apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind("IdempotencyPolicy").GroupKind(), p.Name, errs)
	}
	return warnings(p), nil
}

// unfit says why the sidecar of a policy that is valid otherwise could not be injected.
func unfit(p *v1alpha1.IdempotencyPolicy, image string) field.ErrorList {
	if refusal := inject.FromPolicy(p, image).Validate(); refusal != nil {
		return field.ErrorList{field.Invalid(field.NewPath("spec", "sidecar"), field.OmitValueType{}, refusal.Message)}
	}
	return nil
}

// ValidateUpdate lets through what leaves the spec alone, and everything about a policy that is being deleted: a finalizer can
// always be removed, also from a policy that an older operator accepted and this one would not.
func (v *policyValidator) ValidateUpdate(ctx context.Context, old, p *v1alpha1.IdempotencyPolicy) (admission.Warnings, error) {
	if p.DeletionTimestamp != nil || equality.Semantic.DeepEqual(old.Spec, p.Spec) {
		return nil, nil
	}
	if errs := policy.ValidateMove(policy.Entries(old), p); len(errs) > 0 {
		return nil, apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind("IdempotencyPolicy").GroupKind(), p.Name, errs)
	}
	return v.ValidateCreate(ctx, p)
}

// ValidateDelete allows.
func (v *policyValidator) ValidateDelete(context.Context, *v1alpha1.IdempotencyPolicy) (admission.Warnings, error) {
	return nil, nil
}

// warnings tell what a valid policy gives up.
func warnings(p *v1alpha1.IdempotencyPolicy) admission.Warnings {
	var list admission.Warnings
	if p.Spec.Target.Interception == v1alpha1.InterceptNone {
		list = append(list, fmt.Sprintf("spec.target.interception: None leads no traffic to the sidecar: let the Service's targetPort be %q", inject.PortName))
	}
	if p.Spec.Target.Interception == v1alpha1.InterceptRedirect {
		list = append(list, "spec.target.interception: Redirect adds an init container with the capability NET_ADMIN to every selected pod: where a Pod Security Standard forbids that, pods get no sidecar")
	}
	if p.Spec.Store.OnUnavailable == v1alpha1.OnUnavailablePassThrough {
		list = append(list, "spec.store.onUnavailable: PassThrough executes requests unprotected while the store cannot be reached: a retry may take effect twice")
	}
	if p.Spec.Client.Shared != nil {
		list = append(list, "spec.client.shared: every caller is the same client: a caller who repeats another's key is given the other's answer")
	}
	for i, route := range p.Spec.Routes {
		if route.OnUnknownOutcome == v1alpha1.UnknownReexecute {
			list = append(list, fmt.Sprintf("spec.routes[%d].onUnknownOutcome: Reexecute runs a request again that may have taken effect: use it where that does no harm", i))
		}
	}
	return list
}
