// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// Route is one kind of request that is given exactly one effect.
// +kubebuilder:validation:XValidation:rule="!has(self.key.source.fingerprint) || has(self.window)",message="without a key, equal requests within the window are one: write the route's own window, a short one, such as window: 1m"
// +kubebuilder:validation:XValidation:rule="(self.onUnknownOutcome == 'Reconcile') == has(self.reconcilePath)",message="onUnknownOutcome: Reconcile asks the app at reconcilePath: set both or neither"
type Route struct {
	// name of the route, for metrics and messages.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// methods of the route.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	Methods []Method `json:"methods"`

	// path is the path of a Go http.ServeMux pattern: /payments, /orders/{id}/capture, /files/{rest...}.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="a path begins with /"
	Path string `json:"path"`

	// key says where the key is and what it looks like.
	// +kubebuilder:default={source: {header: "Idempotency-Key"}}
	// +optional
	Key Key `json:"key,omitempty"`

	// window is how long entries of this route are honoured, from 1m to 366d. Default: retention.window.
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}d|([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?)$') && size(self) > 0 && (self.endsWith('d') ? int(self.replace('d', '')) >= 1 && int(self.replace('d', '')) <= 366 : duration(self) >= duration('1m') && duration(self) <= duration('8784h'))",message="a window is between 1m and 366d: write whole days, such as 30d, or whole hours, minutes and seconds, such as 24h or 1h30m"
	// +optional
	Window Duration `json:"window,omitempty"`

	// fingerprint says what makes two requests with one key the same request.
	// +kubebuilder:default={}
	// +optional
	Fingerprint Fingerprint `json:"fingerprint,omitempty"`

	// inFlight says what a request meets whose key is being executed right now.
	// +kubebuilder:default={}
	// +optional
	InFlight InFlight `json:"inFlight,omitempty"`

	// onUnknownOutcome: Block answers 409 until someone settles the entry or its window ends; Reexecute runs the request again; Reconcile asks the app at reconcilePath.
	// +kubebuilder:default=Block
	// +optional
	OnUnknownOutcome OnUnknownOutcome `json:"onUnknownOutcome,omitempty"`

	// reconcilePath is the path on the app that answers, to a GET with the key, whether the request took effect: 200 with the answer to replay, 404 if it did not.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	ReconcilePath string `json:"reconcilePath,omitempty"`

	// replayAuthorization is a path on the app that is asked, by a GET with the caller's credentials, before a recorded answer is replayed: only a 2xx lets it out. Empty: nobody is asked.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	ReplayAuthorization string `json:"replayAuthorization,omitempty"`

	// responses says which answers are recorded and how.
	// +kubebuilder:default={}
	// +optional
	Responses Responses `json:"responses,omitempty"`

	// timeout is how long the app may take; then the client gets 504 and the outcome is unknown.
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:Pattern=`^([0-9]{1,7}h)?([0-9]{1,7}m)?([0-9]{1,7}s)?([0-9]{1,7}ms)?$`
	// +optional
	Timeout Duration `json:"timeout,omitempty"`
}

// Method is an HTTP method with an effect.
// +kubebuilder:validation:Enum=POST;PUT;PATCH;DELETE
type Method string

// Key says where the key is and what it looks like.
// +kubebuilder:validation:XValidation:rule="!has(self.source.fingerprint) || !has(self.pattern) && (!has(self.required) || self.required)",message="with source fingerprint there is no key that could be missing or match a pattern: remove required and pattern"
type Key struct {
	// required: a request without a key is refused with 400. Otherwise it passes through unprotected.
	// +kubebuilder:default=true
	// +optional
	Required *bool `json:"required,omitempty"`

	// source says where the key is. Default: the header Idempotency-Key.
	// +kubebuilder:default={header: "Idempotency-Key"}
	// +optional
	Source KeySource `json:"source,omitzero"`

	// maxLength of a key, in bytes.
	// +kubebuilder:default=255
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=255
	// +optional
	MaxLength int32 `json:"maxLength,omitempty"`

	// pattern is an RE2 regular expression that the whole key must match. Empty: any key.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Pattern string `json:"pattern,omitempty"`
}

// KeySource says where the key is.
// +kubebuilder:validation:XValidation:rule="(has(self.header) ? 1 : 0) + (has(self.cloudEvent) ? 1 : 0) + (has(self.jsonPointer) ? 1 : 0) + (has(self.fingerprint) ? 1 : 0) == 1",message="a key has one source: set exactly one of header, cloudEvent, jsonPointer and fingerprint"
type KeySource struct {
	// header whose value is the key.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern="^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"
	// +optional
	Header string `json:"header,omitempty"`
	// cloudEvent: the event's source and id together, in binary mode (headers ce-source and ce-id) or structured (application/cloudevents+json).
	// +optional
	CloudEvent *CloudEventKey `json:"cloudEvent,omitempty"`
	// jsonPointer (RFC 6901) to the string or integer in the JSON body that is the key.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="a JSON pointer begins with /, as in /event/id"
	// +optional
	JSONPointer string `json:"jsonPointer,omitempty"`
	// fingerprint: there is no key. Requests of a client that are the same request, by fingerprint, have one effect within the route's window, which has to be named.
	// +optional
	Fingerprint *FingerprintKey `json:"fingerprint,omitempty"`
}

// CloudEventKey has no settings.
type CloudEventKey struct{}

// FingerprintKey has no settings.
type FingerprintKey struct{}

// Fingerprint says what makes two requests the same.
type Fingerprint struct {
	// canonicalJSON compares JSON bodies by their content, not their spelling; number text is kept.
	// +kubebuilder:default=true
	// +optional
	CanonicalJSON *bool `json:"canonicalJSON,omitempty"`

	// headers that are part of the request's identity.
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=128
	// +optional
	Headers []string `json:"headers,omitempty"`

	// ignore are JSON pointers (RFC 6901) into the body that are not part of the request's identity.
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=512
	// +optional
	Ignore []string `json:"ignore,omitempty"`
}

// InFlightMode is what a request meets whose key is being executed.
// +kubebuilder:validation:Enum=Reject;Wait
type InFlightMode string

const (
	// InFlightReject answers 409 at once.
	InFlightReject InFlightMode = "Reject"
	// InFlightWait waits up to maxWait for the answer and replays it.
	InFlightWait InFlightMode = "Wait"
)

// InFlight says what a request meets whose key is being executed.
type InFlight struct {
	// mode: Reject answers 409 at once; Wait waits up to maxWait and replays.
	// +kubebuilder:default=Reject
	// +optional
	Mode InFlightMode `json:"mode,omitempty"`

	// maxWait bounds Wait, up to 60s.
	// +kubebuilder:default="2s"
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:Pattern=`^([0-9]{1,7}m)?([0-9]{1,7}s)?([0-9]{1,7}ms)?$`
	// +optional
	MaxWait Duration `json:"maxWait,omitempty"`
}

// OnUnknownOutcome is what happens to a retry of a request whose outcome is not known.
// +kubebuilder:validation:Enum=Block;Reexecute;Reconcile
type OnUnknownOutcome string

const (
	// UnknownBlock refuses: at most one effect, always.
	UnknownBlock OnUnknownOutcome = "Block"
	// UnknownReexecute runs again: for requests that are safe to repeat.
	UnknownReexecute OnUnknownOutcome = "Reexecute"
	// UnknownReconcile asks the app.
	UnknownReconcile OnUnknownOutcome = "Reconcile"
)

// Responses says which answers are recorded and how.
type Responses struct {
	// store: Full records answers whole. Reference leaves the body of a 2xx with a Location on the app where it is: a replay gets it from there, with the caller's credentials.
	// +kubebuilder:default=Full
	// +optional
	Store ResponseStore `json:"store,omitempty"`
	// maxBytes of a recorded body. A larger answer reaches the first caller whole; a retry is told that it cannot be replayed.
	// +kubebuilder:default="1Mi"
	// +optional
	MaxBytes resource.Quantity `json:"maxBytes,omitempty"`

	// headers to record beside Content-*, Location, ETag, Link, Vary and Retry-After.
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=128
	// +optional
	Headers []string `json:"headers,omitempty"`

	// statuses overrides, by status code, whether an answer is recorded: {"422": Release, "503": Store}.
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	Statuses map[string]StatusRule `json:"statuses,omitempty"`
}

// ResponseStore is how answers are recorded.
// +kubebuilder:validation:Enum=Full;Reference
type ResponseStore string

const (
	// ResponseFull records answers whole.
	ResponseFull ResponseStore = "Full"
	// ResponseReference leaves bodies where Location says.
	ResponseReference ResponseStore = "Reference"
)

// StatusRule is what becomes of an answer.
// +kubebuilder:validation:Enum=Store;Release
type StatusRule string

const (
	// StatusStore records the answer and replays it.
	StatusStore StatusRule = "Store"
	// StatusRelease gives the key back: a retry executes again.
	StatusRelease StatusRule = "Release"
)
