// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Consumer takes messages from a broker, and has each message's effect exactly once.
type Consumer struct {
	// name of the consumer, as it says it to first_delivery.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// window is how long a delivery is remembered, from 1m to 366d: longer than the broker may deliver a message again, and its sender send it again.
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}d|([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?)$') && size(self) > 0 && (self.endsWith('d') ? int(self.replace('d', '')) >= 1 && int(self.replace('d', '')) <= 366 : duration(self) >= duration('1m') && duration(self) <= duration('8784h'))",message="a window is between 1m and 366d: write whole days, such as 30d, or whole hours, minutes and seconds, such as 24h or 1h30m"
	Window Duration `json:"window"`
}

// ConsumersStatus is what is kept of deliveries, as last seen.
type ConsumersStatus struct {
	// declared consumers of this policy.
	Declared int32 `json:"declared"`

	// partitions of the deliveries.
	// +optional
	Partitions *PartitionsStatus `json:"partitions,omitempty"`
}
