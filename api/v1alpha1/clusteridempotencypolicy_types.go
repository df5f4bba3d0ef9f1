// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ClusterIdempotencyPolicy gives every namespace that it selects one and the same IdempotencyPolicy. A policy that somebody wrote in a namespace
// takes precedence there, for the pods that both select.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cidem,categories=idempotency
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Window",type=string,JSONPath=`.spec.retention.window`
// +kubebuilder:printcolumn:name="Namespaces",type=string,JSONPath=`.status.namespaces.summary`
// +kubebuilder:printcolumn:name="Pods",type=string,JSONPath=`.status.pods.summary`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name is longer than 63 characters: it becomes a label, and a part of the names of policies and keyspaces; write a shorter one"
type ClusterIdempotencyPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ClusterIdempotencyPolicySpec `json:"spec"`
	// status is what the operator saw. Its default tells whoever waits for a new policy that nobody has looked at it yet.
	// +kubebuilder:default:={"observedGeneration":-1}
	Status ClusterIdempotencyPolicyStatus `json:"status,omitempty"`
}

// ClusterIdempotencyPolicyList is a list of cluster policies.
// +kubebuilder:object:root=true
type ClusterIdempotencyPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterIdempotencyPolicy `json:"items"`
}

// ClusterIdempotencyPolicySpec is the spec of an IdempotencyPolicy, and which namespaces get it.
// +kubebuilder:validation:XValidation:rule="!has(self.keyspace)",message="keyspace would mix the entries of all selected namespaces, and one app could be given another's answer: leave it out, and each namespace has a keyspace of its own, or write policies in those namespaces that are to share one"
// +kubebuilder:validation:XValidation:rule="has(self.store.postgres) == has(oldSelf.store.postgres)",message="the kind of store cannot change here: entries recorded in the old store would no longer be found in any namespace, and a retry would execute again; create a new cluster policy instead"
// +kubebuilder:validation:XValidation:rule="!has(self.secretSyncFrom) || !has(self.store.postgres) || !has(self.store.postgres.adminDSNSecretRef) || self.store.postgres.adminDSNSecretRef.name == self.store.postgres.dsnSecretRef.name",message="secretSyncFrom copies one Secret: let dsnSecretRef and adminDSNSecretRef name the same one, with two keys"
// +kubebuilder:validation:XValidation:rule="!has(self.secretSyncFrom) || !has(self.store.redis) || !has(self.store.redis.adminDSNSecretRef) || self.store.redis.adminDSNSecretRef.name == self.store.redis.dsnSecretRef.name",message="secretSyncFrom copies one Secret: let dsnSecretRef and adminDSNSecretRef name the same one, with two keys"
type ClusterIdempotencyPolicySpec struct {
	// namespaceSelector chooses the namespaces that get the policy, by their labels. It may not be empty. kube-system and the operator's own never do.
	// In a namespace that is not opted in to injection, the policy is there and says so.
	// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && size(self.matchLabels) > 0) || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",message="namespaceSelector is empty and would select every namespace: name at least one label, such as matchLabels: {idempotency.dev/injection: enabled}"
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`

	// secretSyncFrom names a Secret that is copied, under the name that the store's dsnSecretRef has, into every selected namespace that is opted in
	// to injection. Only the keys that the
	// store names are copied; keys for encryption too, where they are in the same Secret. It needs the operator's flag --secret-sync-from, and rights that it does not have by
	// default. Without secretSyncFrom, the Secret has to be in every selected namespace already.
	// +optional
	SecretSyncFrom *SecretSource `json:"secretSyncFrom,omitempty"`

	IdempotencyPolicySpec `json:",inline"`
}

// SecretSource is a Secret in a namespace that the operator's flag --secret-sync-from names.
type SecretSource struct {
	// namespace of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`

	// name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// ClusterIdempotencyPolicyStatus is what the operator saw. Its size does not depend on how many namespaces there are.
type ClusterIdempotencyPolicyStatus struct {
	// observedGeneration is the generation that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions: Ready, Accepted, Distributed; Reconciling and Stalled while true.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// namespaces counts the selected namespaces.
	// +optional
	Namespaces *NamespacesStatus `json:"namespaces,omitempty"`

	// pods are those of all selected namespaces together.
	// +optional
	Pods *PodsStatus `json:"pods,omitempty"`

	// worst are the namespaces that most need somebody to look at them, the worst first: at most ten of all that are not ready.
	// +listType=map
	// +listMapKey=namespace
	// +kubebuilder:validation:MaxItems=10
	// +optional
	Worst []NamespaceTrouble `json:"worst,omitempty"`
}

// NamespacesStatus counts the selected namespaces.
type NamespacesStatus struct {
	// selected by the namespaceSelector.
	Selected int32 `json:"selected"`

	// ready: the namespace's policy is Ready at its current generation.
	Ready int32 `json:"ready"`

	// failing: the namespace has no policy, or one that is not Ready.
	Failing int32 `json:"failing"`

	// overridden: a policy that somebody wrote there takes precedence, for some pods or for all. They count as ready or failing, too.
	Overridden int32 `json:"overridden"`

	// summary is ready/selected, for the table that kubectl prints.
	Summary string `json:"summary"`
}

// NamespaceTrouble says what is wrong in a namespace.
type NamespaceTrouble struct {
	// namespace that is not ready.
	Namespace string `json:"namespace"`

	// reason that the namespace's policy gives for not being Ready, or why there is none.
	Reason string `json:"reason"`

	// message says what to do, cut to 256 bytes.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Message string `json:"message,omitempty"`
}
