// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IdempotencyPolicy gives the HTTP writes of the pods it selects exactly one effect per client intention.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=idem,categories=idempotency
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Store",type=string,JSONPath=`.status.store.type`
// +kubebuilder:printcolumn:name="Window",type=string,JSONPath=`.spec.retention.window`
// +kubebuilder:printcolumn:name="Pods",type=string,JSONPath=`.status.pods.summary`
// +kubebuilder:printcolumn:name="Runway",type=string,JSONPath=`.status.partitions.runwayUntil`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type IdempotencyPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec IdempotencyPolicySpec `json:"spec"`
	// status is what the operator saw. Its default tells whoever waits for a new policy that nobody has looked at it yet.
	// +kubebuilder:default:={"observedGeneration":-1}
	Status IdempotencyPolicyStatus `json:"status,omitempty"`
}

// IdempotencyPolicyList is a list of policies.
// +kubebuilder:object:root=true
type IdempotencyPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []IdempotencyPolicy `json:"items"`
}

// Mode says whether the policy acts.
// +kubebuilder:validation:Enum=Enforce;Audit
type Mode string

const (
	// ModeEnforce refuses, replays and records.
	ModeEnforce Mode = "Enforce"
	// ModeAudit changes nothing for clients and counts what Enforce would have done.
	ModeAudit Mode = "Audit"
)

// IdempotencyPolicySpec is what the platform team asks for.
// +kubebuilder:validation:XValidation:rule="has(self.client.header) == has(oldSelf.client.header) && (!has(self.client.header) || self.client.header.lowerAscii() == oldSelf.client.header.lowerAscii()) && has(self.client.authorization) == has(oldSelf.client.authorization) && has(self.client.jwt) == has(oldSelf.client.jwt) && (!has(self.client.jwt) || self.client.jwt.issuer == oldSelf.client.jwt.issuer && self.client.jwt.claim == oldSelf.client.jwt.claim)",message="how a client is known cannot change: entries recorded for the old name of a client would no longer be found, and a retry would execute again; create a new policy instead"
// +kubebuilder:validation:XValidation:rule="!has(self.store.postgres) || !has(oldSelf.store.postgres) || self.store.postgres.schema == oldSelf.store.postgres.schema",message="store.postgres.schema cannot change: entries recorded in the old schema would no longer be found, and a retry would execute again; create a new policy instead"
// +kubebuilder:validation:XValidation:rule="!has(self.consumers) || size(self.consumers) == 0 || has(self.store.postgres)",message="consumers need store.postgres: Redis has no transaction that a consumer's effect could be part of"
type IdempotencyPolicySpec struct {
	// mode: Enforce acts; Audit changes nothing for clients and counts what would have been refused or replayed.
	// +kubebuilder:default=Enforce
	// +optional
	Mode Mode `json:"mode,omitempty"`

	// selector chooses the pods of this namespace that get the sidecar, by their own labels. It may not be empty.
	// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && size(self.matchLabels) > 0) || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",message="selector is empty and would select every pod of the namespace: name at least one label, such as matchLabels: {app: payments}"
	Selector metav1.LabelSelector `json:"selector"`

	// target is the port of the app that the sidecar stands in front of.
	Target Target `json:"target"`

	// store is where the entries are kept.
	Store Store `json:"store"`

	// keyspace names the set of entries that must not collide. Default: <namespace>.<name>.
	// Policies that write the same keyspace on the same store share it, across namespaces and clusters. It can be changed with
	// the annotation idempotency.dev/abandon-entries only, nor can the kind of store: entries recorded before are no longer found then.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +optional
	Keyspace string `json:"keyspace,omitempty"`

	// retention says how long entries are honoured and how far ahead partitions are made.
	// +kubebuilder:default={}
	// +optional
	Retention Retention `json:"retention,omitempty"`

	// client says who a request is from: entries of two clients never meet. It cannot be changed, but for trustedCIDRs and, of jwt, audiences and jwksURI.
	Client Client `json:"client"`

	// routes are the requests that are given exactly one effect. Everything else passes through untouched.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Routes []Route `json:"routes"`

	// consumers take messages from brokers and have each message's effect exactly once, recorded in the store, which has to be PostgreSQL. What a consumer
	// has taken is remembered for its window, also when it is removed from here.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Consumers []Consumer `json:"consumers,omitempty"`

	// sidecar adjusts the injected container.
	// +kubebuilder:default={}
	// +optional
	Sidecar Sidecar `json:"sidecar,omitempty"`

	// rollout says how pods come to the current sidecar that run without it.
	// +kubebuilder:default={}
	// +optional
	Rollout Rollout `json:"rollout,omitempty"`
}

// DeletionPolicy is what becomes of the keyspace when the policy is deleted.
// +kubebuilder:validation:Enum=Retain;Delete
type DeletionPolicy string

const (
	// DeletionRetain leaves the keyspace in the database.
	DeletionRetain DeletionPolicy = "Retain"
	// DeletionDelete drops the keyspace.
	DeletionDelete DeletionPolicy = "Delete"
)

// Retention says how long entries are honoured.
type Retention struct {
	// window is how long an entry is honoured, from 1m to 366d. Shortening it breaks no promise already made.
	// +kubebuilder:default="24h"
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}d|([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?)$') && size(self) > 0 && (self.endsWith('d') ? int(self.replace('d', '')) >= 1 && int(self.replace('d', '')) <= 366 : duration(self) >= duration('1m') && duration(self) <= duration('8784h'))",message="a window is between 1m and 366d: write whole days, such as 30d, or whole hours, minutes and seconds, such as 24h or 1h30m"
	// +optional
	Window Duration `json:"window,omitempty"`

	// createAhead is how many daily partitions exist beyond today's.
	// +kubebuilder:default=7
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60
	// +optional
	CreateAhead int32 `json:"createAhead,omitempty"`

	// deletionPolicy: Retain leaves the keyspace in the database when the policy is deleted, Delete drops it.
	// +kubebuilder:default=Retain
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

// Sidecar adjusts the injected container.
type Sidecar struct {
	// image of the sidecar. Empty: the operator's own default. A new default reaches a pod when the pod is next created.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Image string `json:"image,omitempty"`

	// resources of the sidecar. Empty: requests of 20m and 32Mi, limits of 1 CPU and 256Mi.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`

	// logLevel of the sidecar.
	// +kubebuilder:default=info
	// +kubebuilder:validation:Enum=debug;info;warn;error
	// +optional
	LogLevel string `json:"logLevel,omitempty"`

	// tracing sends spans of enforced requests to a collector. Without it there are none, and the caller's trace context passes through to the app.
	// +optional
	Tracing *Tracing `json:"tracing,omitempty"`
}
