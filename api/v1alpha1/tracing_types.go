// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Tracing sends a span for each enforced request to a collector.
type Tracing struct {
	// endpoint of a collector that takes OTLP over HTTP in JSON, without a path: http://collector.observability:4318.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[A-Za-z0-9.:\[\]-]+$`
	Endpoint string `json:"endpoint"`

	// samplingRatePerMillion of the requests whose caller has not decided whether they are traced. Default: 0, only what a caller traces is.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	// +optional
	SamplingRatePerMillion int32 `json:"samplingRatePerMillion,omitempty"`
}
