// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

const (
	// probeHealthy and probeUnhealthy are how often a store is looked at again. That it recovered is noticed within 10 seconds: after
	// probeUnhealthy, unhealthyShared and askTimeout at most.
	probeHealthy   = 30 * time.Second
	probeUnhealthy = 5 * time.Second
	// maxMessage keeps a condition readable. The API server's own bound is 32 KiB.
	maxMessage = 1024
)

// pass is one look at one policy. Phases read what is in it and change only its status.
type pass struct {
	// policy has its defaults applied.
	policy *v1alpha1.IdempotencyPolicy
	// siblings are all policies of the namespace, this one among them.
	siblings []v1alpha1.IdempotencyPolicy
	// pods of the namespace that are neither finished nor being deleted.
	pods []corev1.Pod
	// enabled: the namespace opts in to injection.
	enabled bool
	// podSecurity is the level of the Pod Security Standards that the namespace enforces.
	podSecurity string

	// status is what will be written.
	status v1alpha1.IdempotencyPolicyStatus
	// dsn and adminDSN are those of the sidecar and of the operator; empty unless the policy is valid and its Secrets are there.
	dsn, adminDSN string
	// winner is a policy that takes pods away from this one; nil: none does.
	winner *v1alpha1.IdempotencyPolicy
	// revision names the configuration that the policy compiles to; empty while it cannot be compiled.
	revision string
	// restored: what was in the cluster was another configuration, of an earlier generation or by somebody else.
	restored bool
	// again is when to look again; zero: when something changes.
	again time.Duration
}

// set writes a condition.
func (p *pass) set(condition string, status metav1.ConditionStatus, reason, message string) {
	setCondition(&p.status.Conditions, p.policy.Generation, condition, status, reason, message)
}

func setCondition(conditions *[]metav1.Condition, generation int64, condition string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type: condition, Status: status, Reason: reason, Message: cut(message, maxMessage), ObservedGeneration: generation,
	})
}

// cut shortens a message to at most so many bytes.
func cut(message string, most int) string {
	if len(message) <= most {
		return message
	}
	return strings.ToValidUTF8(message[:most-len("...")], "") + "..."
}

func (p *pass) condition(condition string) *metav1.Condition {
	return meta.FindStatusCondition(p.status.Conditions, condition)
}

// usable: the policy can be compiled and its Secrets are there.
func (p *pass) usable() bool { return p.dsn != "" }

// lookAgain asks for another pass within d, a little earlier by chance, so that policies do not all come at once.
func (p *pass) lookAgain(d time.Duration) {
	d -= rand.N(d / 5)
	if p.again == 0 || d < p.again {
		p.again = d
	}
}
