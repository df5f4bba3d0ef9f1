// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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
// +kubebuilder:validation:XValidation:rule="has(self.keyspace) == has(oldSelf.keyspace) && (!has(self.keyspace) || self.keyspace == oldSelf.keyspace)",message="keyspace cannot change: entries recorded under the old name would no longer be found, and a retry would execute again; create a new policy instead"
// +kubebuilder:validation:XValidation:rule="has(self.client.header) == has(oldSelf.client.header) && (!has(self.client.header) || self.client.header.lowerAscii() == oldSelf.client.header.lowerAscii()) && has(self.client.authorization) == has(oldSelf.client.authorization) && has(self.client.jwt) == has(oldSelf.client.jwt) && (!has(self.client.jwt) || self.client.jwt.issuer == oldSelf.client.jwt.issuer && self.client.jwt.claim == oldSelf.client.jwt.claim)",message="how a client is known cannot change: entries recorded for the old name of a client would no longer be found, and a retry would execute again; create a new policy instead"
// +kubebuilder:validation:XValidation:rule="!has(self.store.postgres) || !has(oldSelf.store.postgres) || self.store.postgres.schema == oldSelf.store.postgres.schema",message="store.postgres.schema cannot change: entries recorded in the old schema would no longer be found, and a retry would execute again; create a new policy instead"
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
	// Policies that write the same keyspace on the same store share it, across namespaces and clusters. It cannot be changed.
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

	// sidecar adjusts the injected container.
	// +kubebuilder:default={}
	// +optional
	Sidecar Sidecar `json:"sidecar,omitempty"`

	// rollout says how pods come to the current sidecar that run without it.
	// +kubebuilder:default={}
	// +optional
	Rollout Rollout `json:"rollout,omitempty"`
}

// Store is exactly one of postgres and redis.
// +kubebuilder:validation:XValidation:rule="has(self.postgres) != has(self.redis)",message="a policy has one store: set exactly one of postgres and redis"
type Store struct {
	// postgres keeps entries in a PostgreSQL database, version 15 or later.
	// +optional
	Postgres *PostgresStore `json:"postgres,omitempty"`

	// redis keeps entries in Redis, version 7.0 or later: a server, a primary behind sentinels, or a cluster.
	// +optional
	Redis *RedisStore `json:"redis,omitempty"`

	// onUnavailable: Reject answers 503 and executes nothing while the store cannot be reached; PassThrough executes unprotected, marked by a header and a metric.
	// +kubebuilder:default=Reject
	// +optional
	OnUnavailable OnUnavailable `json:"onUnavailable,omitempty"`
}

// OnUnavailable is what happens to an enforced request while the store cannot be reached.
// +kubebuilder:validation:Enum=Reject;PassThrough
type OnUnavailable string

const (
	// OnUnavailableReject executes nothing.
	OnUnavailableReject OnUnavailable = "Reject"
	// OnUnavailablePassThrough executes without protection.
	OnUnavailablePassThrough OnUnavailable = "PassThrough"
)

// PostgresStore is a PostgreSQL database.
type PostgresStore struct {
	// dsnSecretRef names the Secret, in the policy's own namespace, with the connection string of the sidecar's role.
	DSNSecretRef SecretKeyRef `json:"dsnSecretRef"`

	// adminDSNSecretRef names the Secret with the connection string of the operator's role, which owns the tables. Default: dsnSecretRef.
	// +optional
	AdminDSNSecretRef *SecretKeyRef `json:"adminDSNSecretRef,omitempty"`

	// schema is the database schema that holds the tables and functions. It cannot be changed.
	// +kubebuilder:default=idempotency
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z_][a-z0-9_]*$`
	// +optional
	Schema string `json:"schema,omitempty"`
}

// SecretKeyRef is a key of a Secret in the policy's own namespace.
type SecretKeyRef struct {
	// name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// key within the Secret.
	// +kubebuilder:default=dsn
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Key string `json:"key,omitempty"`
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

// Route is one kind of request that is given exactly one effect.
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
	// +kubebuilder:default={}
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
type Key struct {
	// required: a request without a key is refused with 400. Otherwise it passes through unprotected.
	// +kubebuilder:default=true
	// +optional
	Required *bool `json:"required,omitempty"`

	// header that holds the key.
	// +kubebuilder:default=Idempotency-Key
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern="^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"
	// +optional
	Header string `json:"header,omitempty"`

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

// StatusRule is what becomes of an answer.
// +kubebuilder:validation:Enum=Store;Release
type StatusRule string

const (
	// StatusStore records the answer and replays it.
	StatusStore StatusRule = "Store"
	// StatusRelease gives the key back: a retry executes again.
	StatusRelease StatusRule = "Release"
)

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
}

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
