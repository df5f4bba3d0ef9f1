// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject"
	"github.com/idempotency-dev/operator/internal/policy"
)

// accept owns the condition Accepted: the policy is valid, its Secrets are there, and no older policy selects the same pods.
// A conflict does not end the maintenance of a policy: pods that were created before it may still carry its sidecar.
func (r *Policies) accept(ctx context.Context, p *pass) error {
	if message := r.invalid(p.policy); message != "" {
		p.set(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalid, message)
		return nil
	}
	dsns, err := r.Stores.DSNs(ctx, p.policy.Namespace, policy.SidecarDSN(p.policy), policy.AdminDSN(p.policy))
	var missing *SecretError
	if errors.As(err, &missing) {
		p.set(v1alpha1.ConditionAccepted, metav1.ConditionFalse, missing.Reason, missing.Message)
		p.lookAgain(probeUnhealthy) // Secrets are not watched
		return nil
	}
	if err != nil {
		return err
	}
	p.dsn, p.adminDSN = dsns[0], dsns[1]
	switch winner := conflict(p); {
	case winner != "":
		p.set(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonConflicted,
			fmt.Sprintf("policy %q is older and selects the same pods: delete one of the two, or make their selectors exclude each other", winner))
	case p.keyspaceWasTaken():
		// It stays so until the store says otherwise.
	default:
		return r.acceptKeys(ctx, p)
	}
	return nil
}

// acceptKeys ends accept: the keys that sidecars encrypt answers with, where the policy names some, are there and can be read. Without them the store
// is looked after all the same: running sidecars have theirs.
func (r *Policies) acceptKeys(ctx context.Context, p *pass) error {
	if ref := p.policy.Spec.Store.EncryptionKeySecretRef; ref != nil {
		err := r.Stores.checkKeys(ctx, p.policy.Namespace, v1alpha1.SecretKeyRef(*ref))
		var unusable *SecretError
		if errors.As(err, &unusable) {
			p.set(v1alpha1.ConditionAccepted, metav1.ConditionFalse, unusable.Reason, unusable.Message)
			p.lookAgain(probeUnhealthy)
			return nil
		}
		if err != nil {
			return err
		}
	}
	p.set(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "The policy is valid and in force.")
	return nil
}

// invalid says what keeps the policy from working, or nothing.
func (r *Policies) invalid(p *v1alpha1.IdempotencyPolicy) string {
	if errs := policy.Validate(p); len(errs) > 0 {
		return errs.ToAggregate().Error()
	}
	if refusal := inject.FromPolicy(p, r.SidecarImage).Validate(); refusal != nil {
		return refusal.Error()
	}
	return ""
}

// conflict names the oldest policy that takes pods away from this one, or that would take every pod since it selects by the same rule.
func conflict(p *pass) string {
	var first *v1alpha1.IdempotencyPolicy
	lost := func(winner *v1alpha1.IdempotencyPolicy) {
		if winner.UID != p.policy.UID && (first == nil || older(winner, first)) {
			first = winner
		}
	}
	for i := range p.siblings {
		other := &p.siblings[i]
		if other.DeletionTimestamp == nil && older(other, p.policy) && equality.Semantic.DeepEqual(other.Spec.Selector, p.policy.Spec.Selector) {
			lost(other)
		}
	}
	for i := range p.pods {
		winner, losers := policy.Select(p.siblings, p.pods[i].Labels)
		for _, loser := range losers {
			if loser.UID == p.policy.UID {
				lost(winner)
			}
		}
	}
	if first == nil {
		return ""
	}
	return first.Name
}

// older is the order by which policy.Select decides.
func older(a, b *v1alpha1.IdempotencyPolicy) bool {
	if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
		return c < 0
	}
	return a.Name < b.Name
}

// conflicted: an older policy has pods that this one selects. What holds for the pods that are left is not the whole truth.
func (p *pass) conflicted() bool {
	c := p.condition(v1alpha1.ConditionAccepted)
	return c != nil && c.Reason == v1alpha1.ReasonConflicted
}

// keyspaceTaken turns what the store said into a condition that belongs to the policy.
func (p *pass) keyspaceTaken() {
	p.set(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonKeyspaceTaken,
		fmt.Sprintf("keyspace %q on this store belongs to another policy: give this one another name, or write the same spec.keyspace into both to share it", policy.Keyspace(p.policy)))
}

func (p *pass) keyspaceWasTaken() bool {
	c := p.condition(v1alpha1.ConditionAccepted)
	return c != nil && c.Reason == v1alpha1.ReasonKeyspaceTaken
}

// keyspaceOurs takes back what keyspaceTaken said.
func (p *pass) keyspaceOurs() {
	if p.keyspaceWasTaken() {
		p.set(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "The policy is valid and in force.")
	}
}
