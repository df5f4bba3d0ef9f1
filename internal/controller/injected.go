// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject"
	"github.com/idempotency-dev/operator/internal/policy"
)

// injected owns the condition Injected: every pod that is this policy's carries its current sidecar.
func (r *Policies) injected(p *pass) {
	if p.invalid() {
		p.set(v1alpha1.ConditionInjected, metav1.ConditionUnknown, v1alpha1.ReasonNotAccepted, "Pods are counted once the policy is valid.")
		return
	}
	sidecar := inject.FromPolicy(p.policy, r.SidecarImage)
	sidecar.PodSecurity = p.podSecurity
	counts, refusals := count(sidecar, p.matched())
	p.status.Pods = &counts
	missing := counts.Matched - counts.Injected - counts.Unsupported
	no := func(reason, format string, args ...any) {
		p.set(v1alpha1.ConditionInjected, metav1.ConditionFalse, reason, fmt.Sprintf(format, args...))
	}
	switch {
	case !p.enabled:
		no(v1alpha1.ReasonNamespaceNotEnabled, "The namespace is not opted in: label it %s=%s. In kube-system and the operator's own namespace that has no effect.", v1alpha1.InjectionLabel, v1alpha1.InjectionEnabled)
	case missing > 0:
		no(v1alpha1.ReasonPodsMissingSidecar, "%d of %d pods run without the sidecar: restart their workloads, such as by kubectl rollout restart.", missing, counts.Matched)
	case counts.Unsupported > 0:
		no(v1alpha1.ReasonUnsupported, "%d of %d pods cannot carry the sidecar: %s", counts.Unsupported, counts.Matched, refusals[0])
	case counts.Outdated > 0:
		no(v1alpha1.ReasonRolloutPending, "%d of %d pods carry a sidecar that is not the current one: restart their workloads, such as by kubectl rollout restart.", counts.Outdated, counts.Matched)
	case p.conflicted():
		p.set(v1alpha1.ConditionInjected, metav1.ConditionUnknown, v1alpha1.ReasonNotAccepted, "Pods that an older policy selects, too, are not this policy's.")
	case counts.Matched == 0:
		p.set(v1alpha1.ConditionInjected, metav1.ConditionTrue, v1alpha1.ReasonNoPods, "No pod is selected.")
	default:
		p.set(v1alpha1.ConditionInjected, metav1.ConditionTrue, v1alpha1.ReasonInjected, "Every selected pod carries the current sidecar.")
	}
}

// matched returns the pods that are this policy's: it selects them, no older one does, and they did not opt out.
func (p *pass) matched() []corev1.Pod {
	var matched []corev1.Pod
	for i := range p.pods {
		if optedOut(&p.pods[i]) {
			continue
		}
		if winner, _ := policy.Select(p.siblings, p.pods[i].Labels); winner != nil && winner.UID == p.policy.UID {
			matched = append(matched, p.pods[i])
		}
	}
	return matched
}

// count sorts pods by how they stand to the sidecar, and returns why some cannot carry it.
func count(sidecar inject.Sidecar, pods []corev1.Pod) (v1alpha1.PodsStatus, []string) {
	var counts v1alpha1.PodsStatus
	var refusals []string
	for i := range pods {
		pod := &pods[i]
		counts.Matched++
		if _, carries := inject.TrafficOf(pod); carries {
			counts.Injected++
			if !inject.Carries(sidecar, pod) {
				counts.Outdated++
			}
			continue
		}
		if _, err := inject.Pod(sidecar, pod); err != nil {
			counts.Unsupported++
			refusals = append(refusals, err.Error())
		}
	}
	slices.Sort(refusals)
	counts.Summary = fmt.Sprintf("%d/%d", counts.Injected, counts.Matched)
	return counts, refusals
}
