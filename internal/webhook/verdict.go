// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"errors"
	"fmt"
	"net/http"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject"
)

// outcome is what became of a pod.
type outcome string

const (
	// injected: the pod gets the sidecar.
	injected outcome = "injected"
	// skipped: the pod is none of ours, and is as it was.
	skipped outcome = "skipped"
	// unprotected: a policy selects the pod, which runs without the sidecar all the same.
	unprotected outcome = "unprotected"
	// denied: the pod may not run without the sidecar, and does not run.
	denied outcome = "denied"
)

// Reasons of verdicts, beside those of inject.RefusalError.
const (
	reasonInjected          inject.Reason = "Injected"
	reasonAlreadyInjected   inject.Reason = "AlreadyInjected"
	reasonNotPodCreation    inject.Reason = "NotPodCreation"
	reasonSystemNamespace   inject.Reason = "SystemNamespace"
	reasonMirrorPod         inject.Reason = "MirrorPod"
	reasonOptedOut          inject.Reason = "OptedOut"
	reasonNoPolicy          inject.Reason = "NoPolicy"
	reasonPolicyNotAccepted inject.Reason = "PolicyNotAccepted"
	reasonInternalError     inject.Reason = "InternalError"
)

// verdict is the answer about one pod, and what it rests on as far as that was found out.
type verdict struct {
	outcome outcome
	reason  inject.Reason
	message string
	patch   []jsonpatch.Operation

	// enforced: the pod may not run without its sidecar.
	enforced bool
	// pod is nil when it could not be decoded, policy when none selects it.
	pod    *corev1.Pod
	policy *v1alpha1.IdempotencyPolicy
}

// skip leaves the pod alone.
func (v verdict) skip(reason inject.Reason) verdict {
	v.outcome, v.reason = skipped, reason
	return v
}

// skipUnlessEnforced leaves the pod alone, unless that breaks the promise of its label.
func (v verdict) skipUnlessEnforced(reason inject.Reason, format string, args ...any) verdict {
	if !v.enforced {
		return v.skip(reason)
	}
	return v.refuse(&inject.RefusalError{Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// refuse answers that the pod cannot have the sidecar. An err that is no refusal is our own fault.
func (v verdict) refuse(err error) verdict {
	v.outcome = unprotected
	if v.enforced {
		v.outcome = denied
	}
	if refusal := (*inject.RefusalError)(nil); errors.As(err, &refusal) {
		v.reason, v.message = refusal.Reason, refusal.Message
		return v
	}
	v.reason, v.message = reasonInternalError, "the operator failed: "+err.Error()
	return v
}

// inject answers with the patch.
func (v verdict) inject(patch []jsonpatch.Operation) verdict {
	v.outcome, v.reason, v.patch = injected, reasonInjected, patch
	return v
}

// response is the verdict in the API server's words. A pod without a patch stays byte for byte what it was.
func (v verdict) response() admission.Response {
	switch v.outcome {
	case injected:
		response := admission.Allowed("")
		response.Patches = v.patch
		response.PatchType = ptr.To(admissionv1.PatchTypeJSONPatch)
		return response
	case unprotected:
		return admission.Allowed("").WithWarnings(fmt.Sprintf("the pod runs without its idempotency sidecar (%s): %s", v.reason, v.message))
	case denied:
		message := fmt.Sprintf("a pod labelled %s: \"true\" may not run without its sidecar (%s): %s", v1alpha1.EnforceLabel, v.reason, v.message)
		if v.reason == reasonInternalError {
			return admission.Errored(http.StatusInternalServerError, errors.New(message))
		}
		return admission.Denied(message)
	default:
		return admission.Allowed("")
	}
}
