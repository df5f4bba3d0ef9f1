// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Store is exactly one of postgres and redis.
// +kubebuilder:validation:XValidation:rule="has(self.postgres) != has(self.redis)",message="a policy has one store: set exactly one of postgres and redis"
type Store struct {
	// postgres keeps entries in a PostgreSQL database, version 15 or later.
	// +optional
	Postgres *PostgresStore `json:"postgres,omitempty"`

	// redis keeps entries in Redis, version 7.0 or later: a server, a primary behind sentinels, or a cluster.
	// +optional
	Redis *RedisStore `json:"redis,omitempty"`

	// encryptionKeySecretRef names the Secret with the keys that sidecars encrypt recorded answers with: on each line an id and 32 bytes in base64, the
	// first one for what is recorded from now on. Without it answers are recorded in clear.
	// +optional
	EncryptionKeySecretRef *EncryptionKeySecretRef `json:"encryptionKeySecretRef,omitempty"`

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
