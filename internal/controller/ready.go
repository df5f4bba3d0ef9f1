// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

// order of the conditions: what the reader should look at first.
func order() []string {
	return []string{
		v1alpha1.ConditionReady, v1alpha1.ConditionAccepted, v1alpha1.ConditionStoreHealthy, v1alpha1.ConditionPartitionsReady,
		v1alpha1.ConditionInjected, v1alpha1.ConditionConfigured, v1alpha1.ConditionTrafficEnforced, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled,
	}
}

// ready owns the conditions Ready, Reconciling and Stalled, which are made of the others.
// The latter two are those of kstatus (https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/README.md).
func (p *pass) ready() {
	status, reason, message := metav1.ConditionTrue, v1alpha1.ReasonReady, "Every write of the selected pods takes effect once."
	unknown := false
	for _, name := range order()[1:7] {
		c := p.condition(name)
		if c == nil || c.Status == metav1.ConditionTrue {
			continue
		}
		unknown = unknown || c.Status == metav1.ConditionUnknown
		if status == metav1.ConditionTrue || (status == metav1.ConditionUnknown && c.Status == metav1.ConditionFalse) {
			status, reason, message = c.Status, c.Reason, c.Message
		}
	}
	p.set(v1alpha1.ConditionReady, status, reason, message)
	stalled := p.condition(v1alpha1.ConditionAccepted)
	p.present(v1alpha1.ConditionStalled, stalled != nil && stalled.Status == metav1.ConditionFalse, reason, message)
	p.present(v1alpha1.ConditionReconciling, unknown && p.condition(v1alpha1.ConditionStalled) == nil, reason, message)
	p.status.ObservedGeneration = p.policy.Generation
	slices.SortStableFunc(p.status.Conditions, func(a, b metav1.Condition) int {
		return cmp.Compare(slices.Index(order(), a.Type), slices.Index(order(), b.Type))
	})
}

// present writes a condition that is there only while it is true.
func (p *pass) present(condition string, is bool, reason, message string) {
	if is {
		p.set(condition, metav1.ConditionTrue, reason, message)
	} else {
		meta.RemoveStatusCondition(&p.status.Conditions, condition)
	}
}
