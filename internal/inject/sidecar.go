// SPDX-License-Identifier: Apache-2.0

// Package inject adds the sidecar to a pod: a pure function of the policy and the pod, without a Kubernetes client.
package inject

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/policy"
)

// Sidecar is everything that the injected container depends on, apart from the pod.
type Sidecar struct {
	// Policy is the name of the policy.
	Policy string
	// Image and PullPolicy of the container.
	Image      string
	PullPolicy corev1.PullPolicy
	// ConfigMap holds the compiled policy, SecretName and SecretKey the connection string.
	ConfigMap, SecretName, SecretKey string
	// KeysSecretName and KeysSecretKey hold the keys that answers are encrypted with; empty: they are not.
	KeysSecretName, KeysSecretKey string
	// Tracing says where spans go; the zero value: nowhere.
	Tracing v1alpha1.Tracing
	// LogLevel is debug, info, warn or error.
	LogLevel string
	// Resources of the container, complete.
	Resources corev1.ResourceRequirements
	// Port of the app, by name or number.
	Port intstr.IntOrString
	// Scheme is what the app speaks.
	Scheme v1alpha1.Scheme
	// Interception is how traffic comes to the sidecar.
	Interception v1alpha1.Interception
	// PortEnv is the variable that moves the app with that interception.
	PortEnv string
	// PodSecurity is the level of the Pod Security Standards that the namespace enforces; empty: none that is known.
	PodSecurity string
}

// FromPolicy returns the sidecar of a policy; defaultImage is used where the policy names none. It shares nothing with p.
func FromPolicy(p *v1alpha1.IdempotencyPolicy, defaultImage string) Sidecar {
	s := Sidecar{
		Policy:       p.Name,
		Image:        cmp.Or(p.Spec.Sidecar.Image, defaultImage),
		PullPolicy:   corev1.PullIfNotPresent,
		ConfigMap:    policy.ConfigMapName(p),
		LogLevel:     cmp.Or(p.Spec.Sidecar.LogLevel, "info"),
		Resources:    *p.Spec.Sidecar.Resources.DeepCopy(),
		Port:         p.Spec.Target.Port,
		Interception: cmp.Or(p.Spec.Target.Interception, v1alpha1.InterceptNamedPort),
		PortEnv:      p.Spec.Target.PortEnv,
		Scheme:       p.Spec.Target.Scheme,
	}
	if dsn := policy.SidecarDSN(p); dsn.Name != "" {
		s.SecretName, s.SecretKey = dsn.Name, cmp.Or(dsn.Key, "dsn")
	}
	if p.Spec.Sidecar.Tracing != nil {
		s.Tracing = *p.Spec.Sidecar.Tracing
	}
	if keys := p.Spec.Store.EncryptionKeySecretRef; keys != nil {
		s.KeysSecretName, s.KeysSecretKey = keys.Name, cmp.Or(keys.Key, "keys")
	}
	if s.Resources.Requests == nil && s.Resources.Limits == nil {
		s.Resources.Requests = resources("20m", "32Mi")
		s.Resources.Limits = resources("1", "256Mi")
	}
	return s
}

func resources(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
}

// Hash identifies the sidecar as this version of the operator would inject it: a pod whose annotation differs is outdated.
// It covers what is rendered, so that a new operator that renders the same policy differently has another hash.
func Hash(s Sidecar) string {
	var redirects *corev1.Container
	if s.Interception == v1alpha1.InterceptRedirect {
		redirects = ptr.To(redirect(s, Traffic{}))
	}
	rendered, err := json.Marshal(struct {
		Policy       string
		Port         intstr.IntOrString
		Interception v1alpha1.Interception
		PortEnv      string            `json:",omitempty"`
		Redirect     *corev1.Container `json:",omitempty"`
		Container    corev1.Container
		Volumes      []corev1.Volume
	}{s.Policy, s.Port, s.Interception, s.PortEnv, redirects, container(s, Traffic{}), volumes(s)})
	if err != nil {
		// Only channels, functions and cycles cannot be marshalled, and these types have none.
		panic(err)
	}
	sum := sha256.Sum256(rendered)
	return hex.EncodeToString(sum[:8])
}

// Validate refuses what would make the API server reject the pod, which without the sidecar it would have accepted.
func (s Sidecar) Validate() *RefusalError {
	invalid := func(format string, args ...any) *RefusalError {
		return refuse(PolicyInvalid, "policy "+s.Policy+": "+format, args...)
	}
	if s.Image == "" || strings.TrimSpace(s.Image) != s.Image {
		return invalid("spec.sidecar.image %q is not an image: write one such as registry.example.com/proxy:1.0, or leave it out", s.Image)
	}
	if s.SecretName == "" {
		return invalid("spec.store names no Secret: set spec.store.postgres.dsnSecretRef.name")
	}
	if len(s.Resources.Claims) > 0 {
		return invalid("spec.sidecar.resources.claims cannot be used: the pod declares no such claim")
	}
	for _, list := range []corev1.ResourceList{s.Resources.Requests, s.Resources.Limits} {
		for name, quantity := range list {
			if !slices.Contains([]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}, name) {
				return invalid("spec.sidecar.resources names a resource other than cpu, memory and ephemeral-storage")
			}
			if quantity.Sign() < 0 {
				return invalid("spec.sidecar.resources: %s is negative", name)
			}
		}
	}
	for name, limit := range s.Resources.Limits {
		if request, ok := s.Resources.Requests[name]; ok && request.Cmp(limit) > 0 {
			return invalid("spec.sidecar.resources: the request for %s, %s, is above its limit, %s", name, request.String(), limit.String())
		}
	}
	return nil
}
