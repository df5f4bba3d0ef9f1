// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the API of the operator: group idempotency.dev, version v1alpha1.
// +kubebuilder:object:generate=true
// +groupName=idempotency.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of every kind in this package.
var GroupVersion = schema.GroupVersion{Group: "idempotency.dev", Version: "v1alpha1"}

// AddToScheme registers the kinds of this package.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &IdempotencyPolicy{}, &IdempotencyPolicyList{}, &ClusterIdempotencyPolicy{}, &ClusterIdempotencyPolicyList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
