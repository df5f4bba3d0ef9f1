// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// IdempotencyPolicyStatus is what the operator saw.
type IdempotencyPolicyStatus struct {
	// observedGeneration is the generation that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions: Ready, Accepted, StoreHealthy, PartitionsReady, Injected, Configured, TrafficEnforced; Reconciling and Stalled while true.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// store is the key store as last seen.
	// +optional
	Store *StoreStatus `json:"store,omitempty"`

	// partitions of the keyspace as last seen.
	// +optional
	Partitions *PartitionsStatus `json:"partitions,omitempty"`

	// consumers, and what is kept of their deliveries.
	// +optional
	Consumers *ConsumersStatus `json:"consumers,omitempty"`

	// pods that the policy selects.
	// +optional
	Pods *PodsStatus `json:"pods,omitempty"`
}

// StoreStatus is the key store as last seen.
type StoreStatus struct {
	// type of the store: Postgres or Redis.
	Type string `json:"type"`

	// version of the server.
	// +optional
	Version string `json:"version,omitempty"`

	// schemaVersion of the tables and functions.
	// +optional
	SchemaVersion int32 `json:"schemaVersion,omitempty"`

	// epoch of the keyspace in Redis, by which it is told that a store without it has lost it.
	// +optional
	Epoch string `json:"epoch,omitempty"`
}

// PartitionsStatus is the keyspace's partitions as last seen.
type PartitionsStatus struct {
	// count of attached partitions.
	Count int32 `json:"count"`

	// oldest day, UTC, that a partition holds.
	// +optional
	Oldest string `json:"oldest,omitempty"`

	// newest day, UTC, that a partition holds.
	// +optional
	Newest string `json:"newest,omitempty"`

	// runwayUntil is the instant up to which partitions exist without a gap.
	// +optional
	RunwayUntil *metav1.Time `json:"runwayUntil,omitempty"`
}

// PodsStatus counts the pods that the policy selects.
type PodsStatus struct {
	// matched by the selector.
	Matched int32 `json:"matched"`

	// injected with this policy's sidecar.
	Injected int32 `json:"injected"`

	// outdated carry a sidecar that is not the current one.
	Outdated int32 `json:"outdated"`

	// configured sidecars are running, and say that they use the current configuration.
	// +optional
	Configured int32 `json:"configured,omitempty"`

	// unsupported cannot carry a sidecar; an event on the pod's owner names the reason.
	Unsupported int32 `json:"unsupported"`

	// summary is injected/matched, for the table that kubectl prints.
	Summary string `json:"summary"`
}
