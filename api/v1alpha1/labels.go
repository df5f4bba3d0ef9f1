// SPDX-License-Identifier: Apache-2.0

package v1alpha1

const (
	// InjectionLabel on a namespace, with the value InjectionEnabled, opts its pods in to injection.
	InjectionLabel = "idempotency.dev/injection"
	// InjectionEnabled is the only value of InjectionLabel that opts a namespace in. On a pod, the value InjectionDisabled opts it out.
	InjectionEnabled = "enabled"
	// InjectionDisabled on a pod keeps it without a sidecar, though a policy selects it.
	InjectionDisabled = "disabled"
	// EnforceLabel on a pod, with the value "true", makes admission refuse the pod rather than let it run without its sidecar.
	EnforceLabel = "idempotency.dev/enforce"
	// PolicyAnnotation on an injected pod names the policy whose sidecar it carries.
	PolicyAnnotation = "idempotency.dev/policy"
	// SidecarAnnotation on an injected pod is the hash of the injected sidecar; a pod whose hash is not today's is outdated.
	SidecarAnnotation = "idempotency.dev/sidecar"
	// MovedAnnotation on an injected pod records what PortEnv or Redirect changed, so that it can be undone.
	MovedAnnotation = "idempotency.dev/moved"
	// ClusterPolicyLabel on a policy, or on a copy of a Secret, names the ClusterIdempotencyPolicy that it was made for.
	ClusterPolicyLabel = "idempotency.dev/cluster-policy"
	// RestartedAnnotation on a workload is the hash of the sidecar that the operator last restarted it for.
	RestartedAnnotation = "idempotency.dev/restarted-for"
	// Finalizer holds a policy with deletionPolicy Delete until its keyspace is dropped.
	Finalizer = "idempotency.dev/keyspace"
	// AbandonAnnotation on a policy lets its keyspace or the kind of its store change. Its value names what is lost by that: the kind of the store and the
	// keyspace as they were, such as Postgres/shop.payments. Once they are others, it means nothing any more.
	AbandonAnnotation = "idempotency.dev/abandon-entries"
	// ReleaseAnnotation on a policy that is being deleted, with the value "true", gives up on dropping its keyspace and lets the policy go.
	ReleaseAnnotation = "idempotency.dev/release-keyspace"
)
