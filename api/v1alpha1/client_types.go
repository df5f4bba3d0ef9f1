// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Client says how the sender of a request is known. Exactly one field is set.
// +kubebuilder:validation:XValidation:rule="(has(self.header) ? 1 : 0) + (has(self.jwt) ? 1 : 0) + (has(self.authorization) ? 1 : 0) + (has(self.shared) ? 1 : 0) == 1",message="set exactly one of header, jwt, authorization and shared"
// +kubebuilder:validation:XValidation:rule="!has(self.trustedCIDRs) || has(self.header)",message="trustedCIDRs belongs to header: remove it or set header"
type Client struct {
	// header names the request header that holds the client's identity.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern="^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"
	// +optional
	Header string `json:"header,omitempty"`

	// trustedCIDRs are the peers that may set the header; from anyone else it is stripped. Empty: any peer.
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self)",message="write an address range such as 10.0.0.0/8"
	// +optional
	TrustedCIDRs []string `json:"trustedCIDRs,omitempty"`

	// jwt: the client is a claim of the request's bearer token, whose signature, issuer, audience and times are verified.
	// +optional
	JWT *JWTClient `json:"jwt,omitempty"`

	// authorization: the client is the SHA-256 of the Authorization header. A caller whose token is refreshed is another client from then on,
	// so it fits credentials that outlive the window, such as API keys.
	// +optional
	Authorization *AuthorizationClient `json:"authorization,omitempty"`

	// shared: every caller is the same client. Use it only where callers may see each other's answers.
	// +optional
	Shared *SharedClient `json:"shared,omitempty"`
}

// AuthorizationClient has no options yet.
type AuthorizationClient struct{}

// SharedClient has no options yet.
type SharedClient struct{}
