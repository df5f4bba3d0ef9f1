// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// EncryptionKeySecretRef is a key of a Secret, in the policy's own namespace, that holds a key ring.
type EncryptionKeySecretRef struct {
	// name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// key within the Secret.
	// +kubebuilder:default=keys
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Key string `json:"key,omitempty"`
}
