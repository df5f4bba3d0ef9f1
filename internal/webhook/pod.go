// SPDX-License-Identifier: Apache-2.0

// Package webhook answers the API server's admission requests: it gives new pods the sidecar of the policy that selects them,
// and refuses policies that cannot work.
package webhook

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject"
	"github.com/idempotency-dev/operator/internal/policy"
)

// patience bounds the wait for the policies, which only a cache that is not yet filled makes us wait for.
// It is below the timeout of the webhook's configuration, 3 s, so that the pod is answered for and reported.
const patience = 2 * time.Second

// podHandler gives new pods the sidecar.
type podHandler struct {
	// policies reads the policies, and the namespaces that they are in.
	policies client.Reader
	decoder  admission.Decoder
	reporter *reporter
	log      *slog.Logger
	// image is the sidecar's where the policy names none.
	image string
	// namespace is the operator's own, whose pods are left alone.
	namespace string
	// enforce: every pod that comes this way may not run without its sidecar.
	enforce bool
}

// Handle never fails a pod that is not labelled enforced, and never lets one that is run without its sidecar.
func (h *podHandler) Handle(ctx context.Context, req admission.Request) admission.Response {
	v := h.judge(ctx, req)
	if !ptr.Deref(req.DryRun, false) {
		h.reporter.report(req.Namespace, v)
	}
	return v.response()
}

// judge is decide, surviving its panics.
func (h *podHandler) judge(ctx context.Context, req admission.Request) (v verdict) {
	v.enforced = h.enforce
	defer func() {
		if fault := recover(); fault != nil {
			h.log.ErrorContext(ctx, "pod admission panicked", "namespace", req.Namespace, "fault", fault, "stack", string(debug.Stack()))
			v = v.refuse(fmt.Errorf("panic: %v", fault))
		}
	}()
	h.decide(ctx, req, &v)
	if v.reason == reasonInternalError {
		h.log.ErrorContext(ctx, "pod admission failed", "namespace", req.Namespace, "error", v.message)
	}
	return v
}

// decide fills v in as far as it comes.
func (h *podHandler) decide(ctx context.Context, req admission.Request, v *verdict) {
	if req.Operation != admissionv1.Create || req.Resource.Resource != "pods" || req.SubResource != "" {
		*v = v.skip(reasonNotPodCreation)
		return
	}
	if req.Namespace == metav1.NamespaceSystem || req.Namespace == h.namespace {
		*v = v.skip(reasonSystemNamespace)
		return
	}
	pod := &corev1.Pod{}
	if err := h.decoder.Decode(req, pod); err != nil {
		*v = v.refuse(fmt.Errorf("decode pod: %w", err))
		return
	}
	v.pod = pod
	v.enforced = v.enforced || pod.Labels[v1alpha1.EnforceLabel] == "true"
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		*v = v.skip(reasonMirrorPod)
		return
	}
	if pod.Labels[v1alpha1.InjectionLabel] == v1alpha1.InjectionDisabled {
		*v = v.skipUnlessEnforced(reasonOptedOut, "the label %s: %s contradicts it: remove one of the two", v1alpha1.InjectionLabel, v1alpha1.InjectionDisabled)
		return
	}
	h.protect(ctx, req.Namespace, v)
}

// protect gives the pod the sidecar of its policy.
func (h *podHandler) protect(ctx context.Context, namespace string, v *verdict) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	candidates, err := h.candidates(ctx, namespace, v.pod.Labels)
	if err != nil {
		*v = v.refuse(err)
		return
	}
	v.policy, _ = policy.Select(candidates, v.pod.Labels)
	if v.policy == nil {
		*v = v.skipUnlessEnforced(reasonNoPolicy, "no IdempotencyPolicy of namespace %s selects the pod: create one, or correct its selector or the pod's labels", namespace)
		return
	}
	if err := accepted(v.policy); err != nil {
		*v = v.refuse(err)
		return
	}
	sidecar := inject.FromPolicy(v.policy, h.image)
	if sidecar.Interception == v1alpha1.InterceptRedirect {
		level, err := h.podSecurity(ctx, namespace)
		if err != nil {
			*v = v.refuse(err)
			return
		}
		sidecar.PodSecurity = level
	}
	pod, err := inject.Pod(sidecar, v.pod)
	if err != nil {
		*v = v.refuse(err)
		return
	}
	patch, err := patchOf(v.pod, pod)
	switch {
	case err != nil:
		*v = v.refuse(err)
	case len(patch) == 0:
		*v = v.skip(reasonAlreadyInjected)
	default:
		*v = v.inject(patch)
	}
}

// candidates are the policies of the namespace that can select a pod with these labels, found by the index that Register makes. They are only
// read: a copy of each for every pod is what would make the webhook slow.
func (h *podHandler) candidates(ctx context.Context, namespace string, labels map[string]string) ([]v1alpha1.IdempotencyPolicy, error) {
	var found []v1alpha1.IdempotencyPolicy
	for _, key := range policy.PodKeys(labels) {
		var list v1alpha1.IdempotencyPolicyList
		if err := h.policies.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{selectorIndex: key}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list policies: %w", err)
		}
		found = append(found, list.Items...)
	}
	return found, nil
}

// podSecurity is the level of the Pod Security Standards that the namespace enforces: what it forbids, the API server refuses after us.
func (h *podHandler) podSecurity(ctx context.Context, name string) (string, error) {
	namespace := namespaceMetadata()
	if err := h.policies.Get(ctx, client.ObjectKey{Name: name}, namespace); err != nil {
		return "", fmt.Errorf("get namespace %s: %w", name, err)
	}
	return namespace.Labels[inject.PodSecurityLabel], nil
}

// namespaceMetadata is a namespace of which only the metadata is read and cached.
func namespaceMetadata() *metav1.PartialObjectMetadata {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return namespace
}

// accepted refuses a policy that the controller found unable to work, as it is now. A missing Secret is not that: the pod waits for it,
// as for any other Secret that it mounts, and is protected once it is there. Nor are keys that the sidecar cannot read: it executes nothing. Neither is a conflict: the pod's own policy was chosen.
func accepted(p *v1alpha1.IdempotencyPolicy) error {
	c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAccepted)
	if c == nil || c.Status != metav1.ConditionFalse || c.ObservedGeneration != p.Generation {
		return nil
	}
	switch c.Reason {
	case v1alpha1.ReasonSecretNotFound, v1alpha1.ReasonSecretKeyMissing, v1alpha1.ReasonEncryptionKeyInvalid, v1alpha1.ReasonConflicted:
		return nil
	case v1alpha1.ReasonInvalid:
		return &inject.RefusalError{Reason: inject.PolicyInvalid, Message: fmt.Sprintf("policy %s: %s", p.Name, c.Message)}
	default:
		return &inject.RefusalError{Reason: reasonPolicyNotAccepted, Message: fmt.Sprintf("policy %s is not accepted (%s): %s", p.Name, c.Reason, c.Message)}
	}
}
