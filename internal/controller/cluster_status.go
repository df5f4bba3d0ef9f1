// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

const (
	// worstPlaces bounds the namespaces that a status names, however many there are.
	worstPlaces = 10
	// maxTrouble bounds what is said of each.
	maxTrouble = 256
)

// accepted: namespaces may be written to.
func (p *clusterPass) accepted() bool {
	return meta.IsStatusConditionTrue(p.status.Conditions, v1alpha1.ConditionAccepted)
}

// distributed owns the condition Distributed: every selected namespace has the policy as it is written.
func (p *clusterPass) distributed() {
	if !p.accepted() {
		p.set(v1alpha1.ConditionDistributed, metav1.ConditionUnknown, v1alpha1.ReasonNotAccepted, "Namespaces are given the policy once it is accepted.")
		return
	}
	lacking, first := 0, -1
	for i := range p.places {
		if p.places[i].reason == "" {
			continue
		}
		lacking++
		if first < 0 {
			first = i
		}
	}
	switch {
	case lacking > 0:
		at := p.places[first]
		p.set(v1alpha1.ConditionDistributed, metav1.ConditionFalse, at.reason, fmt.Sprintf("%d of %d namespaces do not have all of the policy. In %s: %s", lacking, len(p.places), at.namespace, at.message))
	case len(p.places) == 0:
		p.set(v1alpha1.ConditionDistributed, metav1.ConditionTrue, v1alpha1.ReasonNoNamespaces, "No namespace is selected.")
	default:
		p.set(v1alpha1.ConditionDistributed, metav1.ConditionTrue, v1alpha1.ReasonDistributed, "Every selected namespace has the policy.")
	}
}

// trouble is what is wrong in a namespace.
type placeTrouble struct {
	v1alpha1.NamespaceTrouble
	// rank orders by how much somebody is needed, 0 the most, and bare is the number of pods without protection.
	rank int
	bare int32
}

// survey counts, over all selected namespaces, and picks the worst.
func (p *clusterPass) survey() {
	counts, pods := v1alpha1.NamespacesStatus{Selected: int32(len(p.places))}, v1alpha1.PodsStatus{}
	var troubles []placeTrouble
	for i := range p.places {
		at := &p.places[i]
		if at.made != nil {
			add(&pods, at.made.Status.Pods)
			if c := at.condition(v1alpha1.ConditionAccepted); c != nil && c.Reason == v1alpha1.ReasonOverridden {
				counts.Overridden++
			}
		}
		ready := at.condition(v1alpha1.ConditionReady)
		switch {
		case at.reason != "":
			troubles = append(troubles, at.trouble(0, at.reason, at.message))
		case ready == nil || ready.Status == metav1.ConditionUnknown:
			// Nobody knows yet.
		case ready.Status == metav1.ConditionTrue:
			counts.Ready++
		case at.condition(v1alpha1.ConditionStalled) != nil:
			troubles = append(troubles, at.trouble(1, ready.Reason, ready.Message))
		default:
			troubles = append(troubles, at.trouble(2, ready.Reason, ready.Message))
		}
	}
	slices.SortFunc(troubles, func(a, b placeTrouble) int {
		return cmp.Or(a.rank-b.rank, cmp.Compare(b.bare, a.bare), cmp.Compare(a.Namespace, b.Namespace))
	})
	counts.Failing = int32(len(troubles))
	counts.Summary = fmt.Sprintf("%d/%d", counts.Ready, counts.Selected)
	pods.Summary = fmt.Sprintf("%d/%d", pods.Injected, pods.Matched)
	p.status.Namespaces, p.status.Pods, p.status.Worst = &counts, &pods, nil
	for _, t := range troubles[:min(worstPlaces, len(troubles))] {
		p.status.Worst = append(p.status.Worst, t.NamespaceTrouble)
	}
}

func (at *place) trouble(rank int, reason, message string) placeTrouble {
	t := placeTrouble{rank: rank, NamespaceTrouble: v1alpha1.NamespaceTrouble{Namespace: at.namespace, Reason: reason, Message: cut(message, maxTrouble)}}
	if at.made != nil && at.made.Status.Pods != nil {
		t.bare = at.made.Status.Pods.Matched - at.made.Status.Pods.Injected
	}
	return t
}

// condition of the namespace's policy, if it speaks of the policy's current generation.
func (at *place) condition(name string) *metav1.Condition {
	if at.made == nil {
		return nil
	}
	c := meta.FindStatusCondition(at.made.Status.Conditions, name)
	if c == nil || c.ObservedGeneration != at.made.Generation {
		return nil
	}
	return c
}

func add(sum, more *v1alpha1.PodsStatus) {
	if more == nil {
		return
	}
	sum.Matched += more.Matched
	sum.Injected += more.Injected
	sum.Outdated += more.Outdated
	sum.Configured += more.Configured
	sum.Unsupported += more.Unsupported
}

// ready owns the conditions Ready, Reconciling and Stalled, as pass.ready does.
func (p *clusterPass) ready() {
	status, reason, message := metav1.ConditionTrue, v1alpha1.ReasonReady, "The policy of every selected namespace is ready."
	accepted := meta.FindStatusCondition(p.status.Conditions, v1alpha1.ConditionAccepted)
	distributed := meta.FindStatusCondition(p.status.Conditions, v1alpha1.ConditionDistributed)
	counts := p.status.Namespaces
	switch {
	case accepted.Status == metav1.ConditionFalse:
		status, reason, message = metav1.ConditionFalse, accepted.Reason, accepted.Message
	case distributed.Status == metav1.ConditionFalse:
		status, reason, message = metav1.ConditionFalse, distributed.Reason, distributed.Message
	case counts.Failing > 0:
		worst := p.status.Worst[0]
		status, reason = metav1.ConditionFalse, v1alpha1.ReasonNamespacesNotReady
		message = fmt.Sprintf("%d of %d namespaces are not ready, which status.worst names. In %s: %s: %s", counts.Failing, counts.Selected, worst.Namespace, worst.Reason, worst.Message)
	case counts.Ready < counts.Selected:
		status, reason = metav1.ConditionUnknown, v1alpha1.ReasonProgressing
		message = fmt.Sprintf("%d of %d namespaces are ready.", counts.Ready, counts.Selected)
	case counts.Selected == 0:
		reason, message = v1alpha1.ReasonNoNamespaces, "No namespace is selected."
	}
	p.set(v1alpha1.ConditionReady, status, reason, message)
	p.present(v1alpha1.ConditionStalled, accepted.Status == metav1.ConditionFalse, reason, message)
	p.present(v1alpha1.ConditionReconciling, accepted.Status == metav1.ConditionTrue && counts.Ready+counts.Failing < counts.Selected, reason, message)
	p.status.ObservedGeneration = p.policy.Generation
	order := []string{v1alpha1.ConditionReady, v1alpha1.ConditionAccepted, v1alpha1.ConditionDistributed, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled}
	slices.SortStableFunc(p.status.Conditions, func(a, b metav1.Condition) int {
		return cmp.Compare(slices.Index(order, a.Type), slices.Index(order, b.Type))
	})
}

// present writes a condition that is there only while it is true.
func (p *clusterPass) present(condition string, is bool, reason, message string) {
	if is {
		p.set(condition, metav1.ConditionTrue, reason, message)
	} else {
		meta.RemoveStatusCondition(&p.status.Conditions, condition)
	}
}
