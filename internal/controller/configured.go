// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject"
)

// configured owns the condition Configured: every running sidecar says that it uses the configuration which this generation compiles to.
// Without it Ready would speak of what the sidecars are going to do, a minute or two from now.
func (r *Policies) configured(ctx context.Context, p *pass) {
	if r.Sidecars == nil {
		meta.RemoveStatusCondition(&p.status.Conditions, v1alpha1.ConditionConfigured)
		return
	}
	unknown := func(reason, format string, args ...any) {
		p.set(v1alpha1.ConditionConfigured, metav1.ConditionUnknown, reason, fmt.Sprintf(format, args...))
	}
	if p.revision == "" {
		unknown(v1alpha1.ReasonNotAccepted, "Sidecars are asked once the policy is valid.")
		return
	}
	running := p.running()
	told := r.Sidecars.Expect(ctx, client.ObjectKeyFromObject(p.policy), p.revision, running, p.restored)
	p.status.Pods.Configured = int32(told.Current)
	switch before := p.condition(v1alpha1.ConditionConfigured); {
	case told.Refusing > 0:
		p.set(v1alpha1.ConditionConfigured, metav1.ConditionFalse, v1alpha1.ReasonConfigRefused, fmt.Sprintf(
			"%d of %d sidecars cannot use the configuration, and go on with the one before: their log says why. Restart the workload if they are of an older version.", told.Refusing, len(running)))
	case told.Behind > 0:
		unknown(v1alpha1.ReasonProgressing, "%d of %d sidecars have not taken up the configuration yet: the kubelet brings it within two minutes.", told.Behind, len(running))
	case told.Silent > 0:
		unknown(v1alpha1.ReasonSidecarsSilent, "%d of %d sidecars do not say which configuration they use: let the operator's pods reach port %s of these, or restart the workload if its sidecars are of an older version.", told.Silent, len(running), inject.AdminPortName)
	case told.Unasked > 0 && before != nil && before.ObservedGeneration == p.policy.Generation && !p.restored:
		// A pod has just begun to run, and will have answered in a moment.
	case told.Unasked > 0:
		unknown(v1alpha1.ReasonProgressing, "Sidecars are being asked which configuration they use.")
	case p.conflicted():
		unknown(v1alpha1.ReasonNotAccepted, "Sidecars in pods that an older policy selects, too, are not this policy's.")
	case len(running) == 0:
		p.set(v1alpha1.ConditionConfigured, metav1.ConditionTrue, v1alpha1.ReasonNoPods, "No sidecar is running.")
	default:
		p.set(v1alpha1.ConditionConfigured, metav1.ConditionTrue, v1alpha1.ReasonCurrent, "Every running sidecar uses the current configuration.")
	}
}

// running returns where the sidecars of this policy that run can be asked, by the UID of their pods.
func (p *pass) running() map[types.UID]string {
	running := map[types.UID]string{}
	for _, pod := range p.matched() {
		traffic, carries := inject.TrafficOf(&pod)
		if carries && serves(&pod) && pod.Annotations[v1alpha1.PolicyAnnotation] == p.policy.Name {
			running[pod.UID] = sidecarAddress(pod.Status.PodIPs[0].IP, traffic.Admin)
		}
	}
	return running
}

// serves: the pod's sidecar has started, and is reached at the pod's own address.
func serves(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && len(pod.Status.PodIPs) > 0 && !pod.Spec.HostNetwork
}
