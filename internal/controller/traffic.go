// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject"
)

// traffic owns the condition TrafficEnforced: no Service, and no EndpointSlice that somebody else than the API server's own controller wrote,
// leads to the port behind the sidecar.
func (r *Policies) traffic(ctx context.Context, p *pass) error {
	if p.invalid() {
		p.set(v1alpha1.ConditionTrafficEnforced, metav1.ConditionUnknown, v1alpha1.ReasonNotAccepted, "Services are looked at once the policy is valid.")
		return nil
	}
	services, slices := &corev1.ServiceList{}, &discoveryv1.EndpointSliceList{}
	for _, list := range []client.ObjectList{services, slices} {
		if err := r.Client.List(ctx, list, client.InNamespace(p.policy.Namespace)); err != nil {
			return fmt.Errorf("list services: %w", err)
		}
	}
	ways := bypasses(p.matched(), services.Items, slices.Items)
	switch {
	case len(ways) > 0:
		message := ways[0]
		if more := len(ways) - 1; more > 0 {
			message = fmt.Sprintf("%s (and %d more)", message, more)
		}
		p.set(v1alpha1.ConditionTrafficEnforced, metav1.ConditionFalse, v1alpha1.ReasonBypassed, message)
	case p.conflicted():
		p.set(v1alpha1.ConditionTrafficEnforced, metav1.ConditionUnknown, v1alpha1.ReasonNotAccepted, "Ways to pods that an older policy selects, too, are not this policy's.")
	case p.status.Pods != nil && p.status.Pods.Matched == 0:
		p.set(v1alpha1.ConditionTrafficEnforced, metav1.ConditionTrue, v1alpha1.ReasonNoPods, "No pod is selected.")
	default:
		p.set(v1alpha1.ConditionTrafficEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced, "No Service leads around the sidecar.")
	}
	return nil
}

// bypasses describes every way around the sidecar, each once, in order.
func bypasses(pods []corev1.Pod, services []corev1.Service, endpoints []discoveryv1.EndpointSlice) []string {
	var ways []string
	for i := range pods {
		pod := &pods[i]
		traffic, carries := inject.TrafficOf(pod)
		if !carries {
			continue // the condition Injected speaks of it
		}
		for j := range services {
			ways = append(ways, throughService(pod, traffic, &services[j])...)
		}
		for j := range endpoints {
			ways = append(ways, throughEndpoints(pod, traffic, &endpoints[j])...)
		}
	}
	slices.Sort(ways)
	return slices.Compact(ways)
}

func throughService(pod *corev1.Pod, traffic inject.Traffic, service *corev1.Service) []string {
	if len(service.Spec.Selector) == 0 || service.Spec.Type == corev1.ServiceTypeExternalName ||
		!labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(pod.Labels)) {
		return nil
	}
	var ways []string
	for _, port := range service.Spec.Ports {
		if cmp.Or(port.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP && resolve(pod, port) == traffic.Around() {
			ways = append(ways, fmt.Sprintf("Service %q, port %d, leads to the app's own port %d: set its targetPort to %s", service.Name, port.Port, traffic.Around(), traffic.Name))
		}
	}
	return ways
}

// resolve is the pod's port that a Service's port leads to, 0 when there is none: by number, else the first container that declares the name,
// native sidecars last (https://github.com/kubernetes/kubernetes/blob/v1.37.2/pkg/api/v1/pod/util.go, FindPort).
func resolve(pod *corev1.Pod, port corev1.ServicePort) int32 {
	target := port.TargetPort
	if target.Type == intstr.Int {
		return cmp.Or(target.IntVal, port.Port)
	}
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for _, c := range containers {
			for _, declared := range c.Ports {
				if declared.Name == target.StrVal && cmp.Or(declared.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP {
					return declared.ContainerPort
				}
			}
		}
	}
	return 0
}

func throughEndpoints(pod *corev1.Pod, traffic inject.Traffic, slice *discoveryv1.EndpointSlice) []string {
	if !slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool { return reaches(e, pod) }) {
		return nil
	}
	var ways []string
	for _, port := range slice.Ports {
		if port.Port != nil && *port.Port == traffic.Around() && (port.Protocol == nil || *port.Protocol == corev1.ProtocolTCP) {
			ways = append(ways, fmt.Sprintf("EndpointSlice %q leads to the app's own port %d: let it lead to the sidecar's, %d", slice.Name, traffic.Around(), traffic.Sidecar))
		}
	}
	return ways
}

func reaches(endpoint discoveryv1.Endpoint, pod *corev1.Pod) bool {
	if ref := endpoint.TargetRef; ref != nil && ref.Kind == "Pod" && ref.Name == pod.Name {
		return true
	}
	return slices.ContainsFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool { return slices.Contains(endpoint.Addresses, ip.IP) })
}
