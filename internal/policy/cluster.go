// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

// madePrefix begins the names of policies that are made for a ClusterIdempotencyPolicy, so that they do not meet those that people choose.
const madePrefix = "cluster-"

// clusterKind is the kind of the owner of a policy that was made.
const clusterKind = "ClusterIdempotencyPolicy"

// NameInNamespace is the name of the policy that is made for a ClusterIdempotencyPolicy in each namespace.
func NameInNamespace(cluster string) string { return madePrefix + cluster }

// ClusterNameOf is the name of the ClusterIdempotencyPolicy for which a policy of this name may have been made; "" for any other name.
func ClusterNameOf(name string) string {
	cluster, found := strings.CutPrefix(name, madePrefix)
	if !found {
		return ""
	}
	return cluster
}

// ClusterPolicyOf is the name of the ClusterIdempotencyPolicy that p was made for, by its owner; "" for a policy that somebody wrote.
func ClusterPolicyOf(p *v1alpha1.IdempotencyPolicy) string {
	owner := metav1.GetControllerOfNoCopy(p)
	if owner == nil || owner.Kind != clusterKind {
		return ""
	}
	if gv, err := schema.ParseGroupVersion(owner.APIVersion); err != nil || gv.Group != v1alpha1.GroupVersion.Group {
		return ""
	}
	return owner.Name
}

// InNamespace is the policy that is made for c in a namespace. It shares nothing with c.
func InNamespace(c *v1alpha1.ClusterIdempotencyPolicy, namespace string) *v1alpha1.IdempotencyPolicy {
	return &v1alpha1.IdempotencyPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "IdempotencyPolicy"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: NameInNamespace(c.Name),
			Labels: map[string]string{v1alpha1.ClusterPolicyLabel: c.Name},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: clusterKind, Name: c.Name, UID: c.UID, Controller: ptr.To(true),
			}},
		},
		Spec: *c.Spec.IdempotencyPolicySpec.DeepCopy(),
	}
}

// ValidateCluster is Validate for a ClusterIdempotencyPolicy.
func ValidateCluster(c *v1alpha1.ClusterIdempotencyPolicy) field.ErrorList {
	p := InNamespace(c, "any")
	Default(p)
	errs := Validate(p)
	spec := field.NewPath("spec")
	if len(c.Name) > validation.LabelValueMaxLength {
		errs = append(errs, field.TooLong(field.NewPath("metadata", "name"), c.Name, validation.LabelValueMaxLength))
	}
	selector, at := &c.Spec.NamespaceSelector, spec.Child("namespaceSelector")
	if len(selector.MatchLabels) == 0 && len(selector.MatchExpressions) == 0 {
		errs = append(errs, field.Required(at, "it is empty and would select every namespace: name at least one label, such as matchLabels: {idempotency.dev/injection: enabled}"))
	} else {
		errs = append(errs, metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, at)...)
	}
	if c.Spec.Keyspace != "" {
		errs = append(errs, field.Forbidden(spec.Child("keyspace"), "it would mix the entries of all selected namespaces, and one app could be given another's answer: leave it out"))
	}
	if c.Spec.SecretSyncFrom != nil && AdminDSN(p).Name != SidecarDSN(p).Name {
		errs = append(errs, field.Forbidden(spec.Child("secretSyncFrom"), "it copies one Secret: let dsnSecretRef and adminDSNSecretRef name the same one, with two keys"))
	}
	return errs
}
