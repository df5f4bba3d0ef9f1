// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// JWTClient is a claim of a verified bearer token.
type JWTClient struct {
	// issuer of the tokens, as they name it in iss. It cannot be changed.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Issuer string `json:"issuer"`

	// audiences of which a token must name at least one in aud.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	Audiences []string `json:"audiences"`

	// jwksURI is where the issuer publishes its public keys: https, or http for a service of the cluster.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	JWKSURI string `json:"jwksURI"`

	// claim that holds the client: text that stays the same for the same caller. It cannot be changed.
	// +kubebuilder:default=sub
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Claim string `json:"claim,omitempty"`
}
