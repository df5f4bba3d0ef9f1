// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

// trace tells the sidecar, in OpenTelemetry's own words, where to send spans, which requests have any, and what to call itself.
func trace(s Sidecar, c *corev1.Container) {
	if s.Tracing == (v1alpha1.Tracing{}) {
		return
	}
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}}
	}
	c.Env = append(
		c.Env,
		field("POD_NAME", "metadata.name"),
		field("POD_NAMESPACE", "metadata.namespace"),
		corev1.EnvVar{Name: "OTEL_RESOURCE_ATTRIBUTES", Value: "k8s.namespace.name=$(POD_NAMESPACE),k8s.pod.name=$(POD_NAME),idempotency.policy=" + s.Policy},
		corev1.EnvVar{Name: "OTEL_EXPORTER_OTLP_ENDPOINT", Value: s.Tracing.Endpoint},
		corev1.EnvVar{Name: "OTEL_TRACES_SAMPLER", Value: "parentbased_traceidratio"},
		corev1.EnvVar{Name: "OTEL_TRACES_SAMPLER_ARG", Value: strconv.FormatFloat(float64(s.Tracing.SamplingRatePerMillion)/1e6, 'f', -1, 64)},
	)
}
