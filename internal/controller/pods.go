// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject"
)

// StripPod is the cache's transformation of pods: it leaves only what tells whether a pod carries the sidecar, could carry it, and is reached
// around it. Clusters have many pods, and most of a pod is of no interest here.
func StripPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("strip pod: it is a %T", object)
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
			Labels: pod.Labels, Annotations: ourAnnotations(pod.Annotations), OwnerReferences: pod.OwnerReferences,
		},
		Spec: corev1.PodSpec{
			HostNetwork: pod.Spec.HostNetwork, OS: pod.Spec.OS, NodeSelector: pod.Spec.NodeSelector, Affinity: pod.Spec.Affinity,
			SecurityContext: stripSecurity(pod.Spec.SecurityContext),
			InitContainers:  stripContainers(pod.Spec.InitContainers), Containers: stripContainers(pod.Spec.Containers), Volumes: stripVolumes(pod.Spec.Volumes),
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, PodIPs: pod.Status.PodIPs},
	}, nil
}

func ourAnnotations(all map[string]string) map[string]string {
	var ours map[string]string
	for name, value := range all {
		if strings.HasPrefix(name, "idempotency.dev/") {
			if ours == nil {
				ours = map[string]string{}
			}
			ours[name] = value
		}
	}
	return ours
}

func stripContainers(containers []corev1.Container) []corev1.Container {
	stripped := make([]corev1.Container, len(containers))
	for i, c := range containers {
		stripped[i] = corev1.Container{Name: c.Name, Ports: c.Ports, RestartPolicy: c.RestartPolicy, Env: stripEnv(c.Env)}
		if c.Name == inject.ContainerName {
			stripped[i].Args = c.Args
		}
	}
	return stripped
}

// stripSecurity leaves the sysctls, which say whether a sidecar may listen on a low port.
func stripSecurity(security *corev1.PodSecurityContext) *corev1.PodSecurityContext {
	if security == nil || len(security.Sysctls) == 0 {
		return nil
	}
	return &corev1.PodSecurityContext{Sysctls: security.Sysctls}
}

// stripEnv leaves of every variable what tells whether it can be made to name another port: whether it has a value, and how that ends.
func stripEnv(env []corev1.EnvVar) []corev1.EnvVar {
	const end = len(":65535")
	stripped := make([]corev1.EnvVar, len(env))
	for i, v := range env {
		stripped[i] = corev1.EnvVar{Name: v.Name, Value: strings.Clone(v.Value[max(0, len(v.Value)-end):])}
		if v.ValueFrom != nil {
			stripped[i].ValueFrom = &corev1.EnvVarSource{}
		}
	}
	return stripped
}

func stripVolumes(volumes []corev1.Volume) []corev1.Volume {
	stripped := make([]corev1.Volume, len(volumes))
	for i, v := range volumes {
		stripped[i].Name = v.Name
	}
	return stripped
}

// live: the pod can still be sent requests.
func live(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// optedOut: the pod's author does not want the sidecar.
func optedOut(pod *corev1.Pod) bool {
	return pod.Labels[v1alpha1.InjectionLabel] == v1alpha1.InjectionDisabled && pod.Labels[v1alpha1.EnforceLabel] != "true"
}
