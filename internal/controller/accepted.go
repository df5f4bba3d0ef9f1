// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
	moved, err := r.moved(ctx, p.policy)
	if err != nil {
		return err
	}
	if moved != "" {
		p.set(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalid, moved)
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
	p.winner = conflict(p)
	switch {
	case p.winner != nil && !p.overridden():
		p.set(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonConflicted,
			fmt.Sprintf("policy %q is older and selects the same pods: delete one of the two, or make their selectors exclude each other", p.winner.Name))
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
	p.inForce()
	return nil
}

// inForce says that the policy is accepted.
func (p *pass) inForce() {
	if p.overridden() {
		p.set(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonOverridden,
			fmt.Sprintf("Policy %q, which somebody wrote in this namespace, takes precedence for the pods that both select.", p.winner.Name))
		return
	}
	p.set(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "The policy is valid and in force.")
}

// overridden: the policy was made for a ClusterIdempotencyPolicy, and gives way to one that somebody wrote, as it should.
func (p *pass) overridden() bool {
	return p.winner != nil && policy.ClusterPolicyOf(p.policy) != "" && policy.ClusterPolicyOf(p.winner) == ""
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

// moved says that sidecars were told to keep entries elsewhere than the policy says now, which nobody gave up. The webhook refuses such a change;
// this is for the case that it was bypassed. What tells is the configuration that sidecars have.
func (r *Policies) moved(ctx context.Context, p *v1alpha1.IdempotencyPolicy) (string, error) {
	found := &corev1.ConfigMap{}
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: policy.ConfigMapName(p)}, found)
	if client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("get configmap: %w", err)
	}
	var told struct {
		Keyspace string
		Store    struct{ Type string }
	}
	if err != nil || !metav1.IsControlledBy(found, p) || json.Unmarshal([]byte(found.Data[configKey]), &told) != nil || told.Keyspace == "" {
		return "", nil //nolint:nilerr // what is no configuration of this policy's tells nothing, and is written anew
	}
	if errs := policy.ValidateMove(policy.EntriesIn(told.Store.Type, told.Keyspace), p); len(errs) > 0 {
		return errs.ToAggregate().Error(), nil
	}
	return "", nil
}

// conflict is the first of the policies that take pods away from this one, or that would take every pod since they select by the same rule. It is
// one with which there is a quarrel, if there is any; else one that overrides this one.
func conflict(p *pass) *v1alpha1.IdempotencyPolicy {
	var first *v1alpha1.IdempotencyPolicy
	quarrel := func(winner *v1alpha1.IdempotencyPolicy) int {
		if (policy.ClusterPolicyOf(winner) == "") == (policy.ClusterPolicyOf(p.policy) == "") {
			return 0
		}
		return 1
	}
	lost := func(winner *v1alpha1.IdempotencyPolicy) {
		if winner.UID != p.policy.UID && (first == nil || cmp.Or(quarrel(winner)-quarrel(first), policy.Precedence(winner, first)) < 0) {
			first = winner
		}
	}
	for i := range p.siblings {
		other := &p.siblings[i]
		if other.DeletionTimestamp == nil && policy.Precedence(other, p.policy) < 0 && equality.Semantic.DeepEqual(other.Spec.Selector, p.policy.Spec.Selector) {
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
	return first
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
		p.inForce()
	}
}
