// SPDX-License-Identifier: Apache-2.0

// Package proxyconfig is the contract between the operator, which compiles policies, and the sidecar, which obeys them: one JSON document.
package proxyconfig

// Version is the version of the document that this package reads and writes.
const Version = 1

// Config is one compiled policy. Every field is set explicitly by the operator; the sidecar assumes no defaults.
// Durations are whole milliseconds, sizes are bytes.
type Config struct {
	// Version is 1.
	Version int `json:"version"`
	// Policy is the policy that this was compiled from.
	Policy Policy `json:"policy"`
	// Keyspace of the entries.
	Keyspace string `json:"keyspace"`
	// Mode is Enforce or Audit.
	Mode string `json:"mode"`
	// Store is where the entries are.
	Store Store `json:"store"`
	// Client says who a request is from.
	Client Client `json:"client"`
	// Routes, sorted by name. No two match the same request with equal precedence.
	Routes []Route `json:"routes"`
}

// Policy names the source of the document.
type Policy struct {
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	Generation int64  `json:"generation"`
}

// Store is where the entries are.
type Store struct {
	// Type is Postgres or Redis.
	Type string `json:"type"`
	// Schema is the database schema, when Type is Postgres.
	Schema string `json:"schema,omitempty"`
	// MinReplicas have to confirm a write, when Type is Redis; 0: none.
	MinReplicas int `json:"minReplicas,omitempty"`
	// OnUnavailable is Reject or PassThrough.
	OnUnavailable string `json:"onUnavailable"`
}

// Client says who a request is from.
type Client struct {
	// Type is Header, JWT, Authorization or Shared.
	Type string `json:"type"`
	// Header is the name of the header, canonical, when Type is Header.
	Header string `json:"header,omitempty"`
	// TrustedCIDRs may set the header, sorted; empty: anyone.
	TrustedCIDRs []string `json:"trustedCIDRs,omitempty"`
	// JWT when Type is JWT.
	JWT *JWT `json:"jwt,omitempty"`
}

// JWT says which bearer tokens are believed, and what of them is the client.
type JWT struct {
	// Issuer of the tokens, exactly.
	Issuer string `json:"issuer"`
	// Audiences, sorted: a token is for at least one of them.
	Audiences []string `json:"audiences"`
	// JWKSURI is where the issuer publishes its keys.
	JWKSURI string `json:"jwksURI"`
	// Claim that holds the client.
	Claim string `json:"claim"`
}

// The values of Route.KeySource beside the empty one. A route whose key is in a header reads as it did before there were others.
const (
	KeyCloudEvent  = "CloudEvent"
	KeyJSONPointer = "JSONPointer"
	KeyFingerprint = "Fingerprint"
)

// ResponseReference is the value of Route.ResponseStore beside the empty one.
const ResponseReference = "Reference"

// Route is one kind of enforced request.
type Route struct {
	Name string `json:"name"`
	// Methods, sorted.
	Methods []string `json:"methods"`
	// Path of an http.ServeMux pattern.
	Path string `json:"path"`
	// KeyRequired: a request without a key is refused.
	KeyRequired bool `json:"keyRequired"`
	// KeySource is where the key is, when it is not in a header; empty: in KeyHeader.
	KeySource string `json:"keySource,omitempty"`
	// KeyHeader holds the key, canonical, when KeySource is empty.
	KeyHeader string `json:"keyHeader,omitempty"`
	// KeyPointer is the RFC 6901 pointer to the key, when KeySource is JSONPointer.
	KeyPointer string `json:"keyPointer,omitempty"`
	// KeyMaxLength in bytes, 1 to 255.
	KeyMaxLength int `json:"keyMaxLength"`
	// KeyPattern is an RE2 expression for the whole key; empty: any.
	KeyPattern string `json:"keyPattern,omitempty"`
	// WindowMillis is how long an entry is honoured.
	WindowMillis int64 `json:"windowMillis"`
	// CanonicalJSON compares JSON bodies by content.
	CanonicalJSON bool `json:"canonicalJSON"`
	// FingerprintHeaders are part of the fingerprint, canonical and sorted.
	FingerprintHeaders []string `json:"fingerprintHeaders,omitempty"`
	// FingerprintIgnore are JSON pointers left out of it, sorted.
	FingerprintIgnore []string `json:"fingerprintIgnore,omitempty"`
	// InFlight is Reject or Wait.
	InFlight string `json:"inFlight"`
	// MaxWaitMillis bounds Wait.
	MaxWaitMillis int64 `json:"maxWaitMillis"`
	// OnUnknownOutcome is Block, Reexecute or Reconcile.
	OnUnknownOutcome string `json:"onUnknownOutcome"`
	// ReconcilePath on the app, when OnUnknownOutcome is Reconcile.
	ReconcilePath string `json:"reconcilePath,omitempty"`
	// ReplayAuthorization is a path on the app that is asked before a replay; empty: nobody is.
	ReplayAuthorization string `json:"replayAuthorization,omitempty"`
	// ResponseStore is Reference where bodies stay where Location says; empty: answers are recorded whole.
	ResponseStore string `json:"responseStore,omitempty"`
	// ResponseMaxBytes of a recorded body.
	ResponseMaxBytes int64 `json:"responseMaxBytes"`
	// ResponseHeaders to record beside the built-in ones, canonical and sorted.
	ResponseHeaders []string `json:"responseHeaders,omitempty"`
	// StatusRules overrides, by status code, Store or Release.
	StatusRules map[int]string `json:"statusRules,omitempty"`
	// TimeoutMillis is how long the app may take.
	TimeoutMillis int64 `json:"timeoutMillis"`
}
