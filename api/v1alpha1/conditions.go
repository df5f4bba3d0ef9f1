// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Condition types of an IdempotencyPolicy. Each is written by one phase of the reconciler.
const (
	// ConditionReady is True when all others hold at this generation; else its reason is that of the first that does not.
	ConditionReady = "Ready"
	// ConditionAccepted is True when the policy is valid, its Secrets exist and no older policy selects the same pods.
	ConditionAccepted = "Accepted"
	// ConditionStoreHealthy is True when the last probes of the key store were good.
	ConditionStoreHealthy = "StoreHealthy"
	// ConditionPartitionsReady is True when partitions exist as far ahead as asked and no drop is overdue.
	ConditionPartitionsReady = "PartitionsReady"
	// ConditionInjected is True when every matched pod carries the current sidecar.
	ConditionInjected = "Injected"
	// ConditionConfigured is True when every running sidecar says that it uses this generation's configuration.
	ConditionConfigured = "Configured"
	// ConditionTrafficEnforced is True when no Service leads around the sidecar.
	ConditionTrafficEnforced = "TrafficEnforced"
	// ConditionReconciling is present, and True, only while the reconciler is working towards the current generation (kstatus).
	ConditionReconciling = "Reconciling"
	// ConditionStalled is present, and True, only while nothing but a change by the user can help (kstatus).
	ConditionStalled = "Stalled"
)

// Reasons of ConditionReady, and of every condition that is True or not yet known.
const (
	ReasonReady    = "Ready"
	ReasonAccepted = "Accepted"
	// ReasonOverridden, of ConditionAccepted being True: a policy that somebody wrote in the namespace takes precedence over the one that a
	// ClusterIdempotencyPolicy put there, for pods that both select; the message names it.
	ReasonOverridden = "Overridden"
	ReasonHealthy    = "Healthy"
	ReasonMaintained = "Maintained"
	// ReasonNativeExpiry: Redis removes each entry by itself, and there are no partitions.
	ReasonNativeExpiry = "NativeExpiry"
	ReasonInjected     = "Injected"
	ReasonNoPods       = "NoPods"
	ReasonCurrent      = "Current"
	ReasonEnforced     = "Enforced"
	ReasonNotAccepted  = "NotAccepted"
	ReasonProgressing  = "Progressing"
	ReasonDeleting     = "Deleting"
)

// Reasons for ConditionAccepted being False.
const (
	// ReasonInvalid: the message names the field, the value and what to write instead.
	ReasonInvalid = "Invalid"
	// ReasonConflicted: an older policy selects the same pods; the message names it.
	ReasonConflicted = "Conflicted"
	// ReasonSecretNotFound: the message names the Secret.
	ReasonSecretNotFound = "SecretNotFound"
	// ReasonSecretKeyMissing: the message names the Secret and the key.
	ReasonSecretKeyMissing = "SecretKeyMissing"
	// ReasonEncryptionKeyInvalid: what is under the key of the Secret is no key ring; the message names the line.
	ReasonEncryptionKeyInvalid = "EncryptionKeyInvalid"
	// ReasonKeyspaceTaken: the derived keyspace belongs to another policy that did not name it on purpose.
	ReasonKeyspaceTaken = "KeyspaceTaken"
)

// Reasons for ConditionStoreHealthy being False.
const (
	ReasonUnreachable      = "Unreachable"
	ReasonAuthFailed       = "AuthFailed"
	ReasonTLSFailed        = "TLSFailed"
	ReasonDSNInvalid       = "DSNInvalid"
	ReasonReadOnly         = "ReadOnly"
	ReasonNotDurable       = "NotDurable"
	ReasonSchemaOutdated   = "SchemaOutdated"
	ReasonPermissionDenied = "PermissionDenied"
	ReasonClockSkew        = "ClockSkew"
	// ReasonEvictionPossible: Redis may remove entries when its memory is full.
	ReasonEvictionPossible = "EvictionPossible"
	// ReasonPersistenceOff: Redis forgets everything when it ends.
	ReasonPersistenceOff = "PersistenceOff"
	// ReasonClusterDegraded: slots without a server, or fewer replicas than minReplicas.
	ReasonClusterDegraded = "ClusterDegraded"
	// ReasonDataLost: Redis has lost entries; the message says until when keys that are absent count as unknown.
	ReasonDataLost = "DataLost"
	// ReasonProbeFailed: the store answers with an error that none of the others describes; the manager's log has it.
	ReasonProbeFailed = "ProbeFailed"
)

// Reasons for ConditionPartitionsReady being False.
const (
	ReasonRunwayShort             = "RunwayShort"
	ReasonLockTimeout             = "LockTimeout"
	ReasonDefaultPartitionHasRows = "DefaultPartitionHasRows"
	ReasonPendingDetach           = "PendingDetach"
	ReasonDropOverdue             = "DropOverdue"
	ReasonBoundsMismatch          = "BoundsMismatch"
	ReasonMaintenanceFailed       = "MaintenanceFailed"
)

// Reasons for ConditionInjected being False.
const (
	ReasonNamespaceNotEnabled = "NamespaceNotEnabled"
	ReasonPodsMissingSidecar  = "PodsMissingSidecar"
	ReasonRolloutPending      = "RolloutPending"
	ReasonUnsupported         = "Unsupported"
)

// Reasons for ConditionConfigured not being True.
const (
	// ReasonConfigRefused: a sidecar cannot use the configuration, and goes on with the one before.
	ReasonConfigRefused = "ConfigRefused"
	// ReasonSidecarsSilent, with status Unknown: sidecars cannot be asked; the message says what to allow.
	ReasonSidecarsSilent = "SidecarsSilent"
)

// ConditionDistributed, of a ClusterIdempotencyPolicy, is True when every selected namespace has the policy as it is written.
const ConditionDistributed = "Distributed"

// Reasons of a ClusterIdempotencyPolicy's conditions, beside those that it shares with an IdempotencyPolicy.
const (
	ReasonDistributed = "Distributed"
	// ReasonNoNamespaces: none is selected, and there is nothing to do.
	ReasonNoNamespaces = "NoNamespaces"
	// ReasonNameTaken: a policy that somebody wrote has the name that this one's would have; the message names the namespace.
	ReasonNameTaken = "NameTaken"
	// ReasonApplyFailed: the API server refuses a policy, or the copy of a Secret; the message says what it said.
	ReasonApplyFailed = "ApplyFailed"
	// ReasonNamespacesNotReady: the policy is there, and does not work in some namespaces; status.worst names them.
	ReasonNamespacesNotReady = "NamespacesNotReady"
	// ReasonSecretSyncNotAllowed: the operator does not run with the flag that allows to copy Secrets from there.
	ReasonSecretSyncNotAllowed = "SecretSyncNotAllowed"
)

// ReasonBypassed: a Service reaches the app's own port; the message names it.
const ReasonBypassed = "Bypassed"
