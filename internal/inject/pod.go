// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

// Pod returns a copy of pod that carries the sidecar. pod is not changed.
//
// A pod that carries this sidecar already is returned as it is, whatever others did to the container since, as long as the sidecar's
// ports still are what they would be now: another injector that came later may have taken them. A pod that carries an older sidecar,
// or another policy's, gets the current one in its place. The error is a *RefusalError.
func Pod(s Sidecar, pod *corev1.Pod) (*corev1.Pod, error) {
	if refusal := refusalOf(s, pod); refusal != nil {
		return nil, refusal
	}
	out := pod.DeepCopy()
	restore(out)
	if refusal := mend(s, out); refusal != nil {
		return nil, refusal
	}
	traffic, refusal := intercept(s, out)
	if refusal != nil {
		return nil, refusal
	}
	if current, ok := TrafficOf(pod); ok && current == traffic && Carries(s, pod) {
		return pod.DeepCopy(), nil
	}
	own := []corev1.Container{container(s, traffic)}
	if s.Interception == v1alpha1.InterceptRedirect {
		own = append(own, redirect(s, traffic))
	}
	for i := range own {
		share(out.Spec.Resources, &own[i].Resources)
	}
	out.Spec.InitContainers = put(out.Spec.InitContainers, own)
	unmountKeys(s, out)
	for _, volume := range volumes(s) {
		out.Spec.Volumes = mount(out.Spec.Volumes, volume)
	}
	if out.Annotations == nil {
		out.Annotations = map[string]string{}
	}
	out.Annotations[v1alpha1.PolicyAnnotation] = s.Policy
	out.Annotations[v1alpha1.SidecarAnnotation] = Hash(s)
	delete(out.Annotations, v1alpha1.MovedAnnotation)
	if traffic.Moved != (Moved{}) {
		out.Annotations[v1alpha1.MovedAnnotation] = traffic.Moved.record()
	}
	return out, nil
}

// Carries reports whether the pod carries this very sidecar.
func Carries(s Sidecar, pod *corev1.Pod) bool {
	return sidecarIn(pod) != nil &&
		pod.Annotations[v1alpha1.PolicyAnnotation] == s.Policy && pod.Annotations[v1alpha1.SidecarAnnotation] == Hash(s)
}

// sidecarIn returns the sidecar that an operator injected, of whatever age, or nil.
func sidecarIn(pod *corev1.Pod) *corev1.Container {
	if pod.Annotations[v1alpha1.SidecarAnnotation] == "" {
		return nil
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.Name == ContainerName && native(c) {
			return c
		}
	}
	return nil
}

// refusalOf names what keeps the sidecar out of the pod, ports aside.
func refusalOf(s Sidecar, pod *corev1.Pod) *RefusalError {
	if refusal := s.Validate(); refusal != nil {
		return refusal
	}
	if pod.Spec.HostNetwork {
		return refuse(HostNetwork, "the pod uses the node's network, where the sidecar cannot stand in front of it: remove hostNetwork, or exclude the pod from the selector of policy %s", s.Policy)
	}
	if windows(&pod.Spec) {
		return refuse(Windows, "the pod runs on Windows and the sidecar is a Linux program: exclude the pod from the selector of policy %s", s.Policy)
	}
	if sidecarIn(pod) != nil {
		return nil
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range list {
			if c.Name == ContainerName || c.Name == RedirectName && s.Interception == v1alpha1.InterceptRedirect {
				return refuse(ContainerTaken, "the pod has a container named %s that the operator did not inject: remove it or give it another name", c.Name)
			}
		}
	}
	for _, volume := range pod.Spec.Volumes {
		if Owned("volumes", volume.Name) {
			return refuse(VolumeTaken, "the pod has a volume named %s, which is the sidecar's: give it another name", volume.Name)
		}
	}
	return nil
}

// windows reports whether the pod can only run on Windows nodes.
func windows(spec *corev1.PodSpec) bool {
	if spec.OS != nil {
		return spec.OS.Name == corev1.Windows
	}
	if os, ok := spec.NodeSelector[corev1.LabelOSStable]; ok {
		return os == string(corev1.Windows)
	}
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil || spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return false
	}
	terms := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return len(terms) > 0 && !slices.ContainsFunc(terms, func(term corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool {
			return e.Key == corev1.LabelOSStable && e.Operator == corev1.NodeSelectorOpIn && slices.Equal(e.Values, []string{string(corev1.Windows)})
		})
	})
}

// substituted reports whether name is one that substitute could have chosen: it tries at most one more than the pod has ports.
func substituted(pod *corev1.Pod, name, original string) bool {
	attempts := 1
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range list {
			attempts += len(c.Ports)
		}
	}
	for attempt := range attempts {
		if candidate(original, attempt) == name {
			return true
		}
	}
	return false
}

// share leaves to the pod's own bounds what the pod bounds as a whole: the API server refuses a pod whose containers
// ask for more than the pod does, and the pod's author counted without the sidecar.
func share(pod *corev1.ResourceRequirements, c *corev1.ResourceRequirements) {
	if pod == nil {
		return
	}
	for _, bounds := range []corev1.ResourceList{pod.Requests, pod.Limits} {
		for name := range bounds {
			delete(c.Requests, name)
			delete(c.Limits, name)
		}
	}
}

// put places our containers where an older sidecar was, else before all others, so that they have run, or serve, before anything else starts.
func put(list, own []corev1.Container) []corev1.Container {
	for _, c := range own[1:] {
		list = without(list, c.Name)
	}
	i := max(0, slices.IndexFunc(list, func(c corev1.Container) bool { return c.Name == ContainerName }))
	return slices.Insert(without(list, ContainerName), i, own...)
}

func without(list []corev1.Container, name string) []corev1.Container {
	return slices.DeleteFunc(list, func(c corev1.Container) bool { return c.Name == name })
}

func mount(list []corev1.Volume, volume corev1.Volume) []corev1.Volume {
	if i := slices.IndexFunc(list, func(other corev1.Volume) bool { return other.Name == volume.Name }); i >= 0 {
		list[i] = volume
		return list
	}
	return append(list, volume)
}
