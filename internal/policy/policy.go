// SPDX-License-Identifier: Apache-2.0

// Package policy turns an IdempotencyPolicy into what the rest of the program works with: defaults applied, mistakes named, and the
// sidecar's configuration compiled. Everything here is pure: no I/O, no clock, the same result for the same policy.
package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

// Keyspace is the keyspace of p: the one that it names, else <namespace>.<name>.
func Keyspace(p *v1alpha1.IdempotencyPolicy) string {
	if p.Spec.Keyspace != "" {
		return p.Spec.Keyspace
	}
	return p.Namespace + "." + p.Name
}

// Entries names where the entries of p are: the kind of its store, a slash and its keyspace.
func Entries(p *v1alpha1.IdempotencyPolicy) string {
	if p.Spec.Store.Redis != nil {
		return EntriesIn("Redis", Keyspace(p))
	}
	return EntriesIn("Postgres", Keyspace(p))
}

// EntriesIn is what Entries is made of.
func EntriesIn(store, keyspace string) string { return store + "/" + keyspace }

// SidecarDSN is the reference to the connection string of the sidecar. It is empty without a store.
func SidecarDSN(p *v1alpha1.IdempotencyPolicy) v1alpha1.SecretKeyRef {
	switch store := p.Spec.Store; {
	case store.Postgres != nil:
		return store.Postgres.DSNSecretRef
	case store.Redis != nil:
		return store.Redis.DSNSecretRef
	default:
		return v1alpha1.SecretKeyRef{}
	}
}

// AdminDSN is the reference to the connection string of the operator: adminDSNSecretRef, else dsnSecretRef. It is empty without a store.
func AdminDSN(p *v1alpha1.IdempotencyPolicy) v1alpha1.SecretKeyRef {
	switch store := p.Spec.Store; {
	case store.Postgres != nil && store.Postgres.AdminDSNSecretRef != nil:
		return *store.Postgres.AdminDSNSecretRef
	case store.Redis != nil && store.Redis.AdminDSNSecretRef != nil:
		return *store.Redis.AdminDSNSecretRef
	default:
		return SidecarDSN(p)
	}
}

// maxNameLength is the bound on the name of a Kubernetes object.
const maxNameLength = 253

// ConfigMapName is the name of the ConfigMap, in the policy's namespace, that holds the compiled policy: "idempotency-" and the policy's name,
// shortened and ended by a part of its hash where that is too long for an object's name.
func ConfigMapName(p *v1alpha1.IdempotencyPolicy) string {
	name := "idempotency-" + p.Name
	if len(name) <= maxNameLength {
		return name
	}
	sum := sha256.Sum256([]byte(p.Name))
	suffix := "-" + hex.EncodeToString(sum[:5])
	// A label of a DNS name neither begins nor ends with a hyphen.
	return strings.TrimRight(name[:maxNameLength-len(suffix)], ".-") + suffix
}

// Select chooses the policy for a pod with podLabels among policies, which are all of the pod's namespace: of those that select it the one that
// takes precedence. The others that select it are losers, in that order. A policy that is being deleted does not count, nor does
// one whose selector is empty or not valid. The results point into policies.
func Select(policies []v1alpha1.IdempotencyPolicy, podLabels map[string]string) (winner *v1alpha1.IdempotencyPolicy, losers []*v1alpha1.IdempotencyPolicy) {
	var matching []*v1alpha1.IdempotencyPolicy
	for i := range policies {
		if p := &policies[i]; p.DeletionTimestamp == nil && selects(p, podLabels) {
			matching = append(matching, p)
		}
	}
	if len(matching) == 0 {
		return nil, nil
	}
	slices.SortStableFunc(matching, Precedence)
	return matching[0], matching[1:]
}

// Precedence is negative where a takes precedence over b, in one namespace: a policy that somebody wrote over one that was made for a
// ClusterIdempotencyPolicy, then the older one, then by name.
func Precedence(a, b *v1alpha1.IdempotencyPolicy) int {
	made := func(p *v1alpha1.IdempotencyPolicy) int {
		if ClusterPolicyOf(p) != "" {
			return 1
		}
		return 0
	}
	return cmp.Or(made(a)-made(b), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// selects reports whether the policy's selector is neither empty nor invalid, and matches. Few of thousands do: a labels.Selector, which is
// costly to make, is made for those only that match as far as one can tell without.
func selects(p *v1alpha1.IdempotencyPolicy, podLabels map[string]string) bool {
	for name, value := range p.Spec.Selector.MatchLabels {
		if has, ok := podLabels[name]; !ok || has != value {
			return false
		}
	}
	for i := range p.Spec.Selector.MatchExpressions {
		if !mayMatch(&p.Spec.Selector.MatchExpressions[i], podLabels) {
			return false
		}
	}
	selector, err := metav1.LabelSelectorAsSelector(&p.Spec.Selector)
	return err == nil && !selector.Empty() && selector.Matches(labels.Set(podLabels))
}

// mayMatch is false only for an expression that the labels do not meet.
func mayMatch(e *metav1.LabelSelectorRequirement, podLabels map[string]string) bool {
	value, has := podLabels[e.Key]
	switch e.Operator {
	case metav1.LabelSelectorOpIn:
		return has && slices.Contains(e.Values, value)
	case metav1.LabelSelectorOpNotIn:
		return !has || !slices.Contains(e.Values, value)
	case metav1.LabelSelectorOpExists:
		return has
	case metav1.LabelSelectorOpDoesNotExist:
		return !has
	default:
		return true
	}
}

// anyPod is the key of policies that name no label. It is no label.
const anyPod = "="

// SelectorKeys are the keys to index a policy by: every pod that it selects has exactly one of them among its PodKeys.
func SelectorKeys(p *v1alpha1.IdempotencyPolicy) []string {
	selector := p.Spec.Selector
	if len(selector.MatchLabels) > 0 {
		name := slices.Min(slices.Collect(maps.Keys(selector.MatchLabels)))
		return []string{name + "=" + selector.MatchLabels[name]}
	}
	for _, e := range selector.MatchExpressions {
		if e.Operator != metav1.LabelSelectorOpIn {
			continue
		}
		keys := make([]string, 0, len(e.Values))
		for _, value := range e.Values {
			keys = append(keys, e.Key+"="+value)
		}
		slices.Sort(keys)
		return slices.Compact(keys)
	}
	return []string{anyPod}
}

// PodKeys are the keys of all policies that can select a pod with these labels.
func PodKeys(podLabels map[string]string) []string {
	keys := []string{anyPod}
	for name, value := range podLabels {
		keys = append(keys, name+"="+value)
	}
	return keys
}
