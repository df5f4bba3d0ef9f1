// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// RedisStore is Redis: one server, a primary behind sentinels, or a cluster, as the connection string says.
type RedisStore struct {
	// dsnSecretRef names the Secret, in the policy's own namespace, with the connection string of the sidecar's user.
	DSNSecretRef SecretKeyRef `json:"dsnSecretRef"`

	// adminDSNSecretRef names the Secret with the connection string of the operator's user. Default: dsnSecretRef.
	// +optional
	AdminDSNSecretRef *SecretKeyRef `json:"adminDSNSecretRef,omitempty"`

	// minReplicas have to confirm a write before it counts; with fewer, the outcome of the call is unknown. 0: the primary alone.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=5
	// +optional
	MinReplicas int32 `json:"minReplicas,omitempty"`
}
