// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// RolloutStrategy is what becomes of pods that lack the current sidecar.
// +kubebuilder:validation:Enum=None;Restart
type RolloutStrategy string

const (
	// RolloutNone restarts nothing.
	RolloutNone RolloutStrategy = "None"
	// RolloutRestart restarts the workloads of such pods, one at a time.
	RolloutRestart RolloutStrategy = "Restart"
)

// Rollout says how pods come to the current sidecar.
type Rollout struct {
	// strategy: None leaves it to you to restart workloads; Restart restarts Deployments, StatefulSets and DaemonSets whose pods lack the current
	// sidecar, one at a time in the whole cluster, each once for each sidecar, as kubectl rollout restart does, and only while the
	// PodDisruptionBudgets of its pods allow a disruption. It needs the ClusterRole idempotency-operator-rollout to be bound to the operator.
	// +kubebuilder:default=None
	// +optional
	Strategy RolloutStrategy `json:"strategy,omitempty"`
}
