// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

// port is a declared TCP port, or for an undeclared number only that.
type port struct {
	container *corev1.Container
	number    int32
	name      string
}

// target finds the app's port.
func target(s Sidecar, pod *corev1.Pod) (port, *RefusalError) {
	if s.Interception == v1alpha1.InterceptNamedPort && s.Port.Type != intstr.String {
		return port{}, refuse(PortUnnamed, "policy %s: NamedPort takes a port's name over, and spec.target.port is the number %d: name the container port and write its name", s.Policy, s.Port.IntVal)
	}
	found := port{number: s.Port.IntVal}
	if s.Port.Type == intstr.Int {
		if len(validation.IsValidPortNum(int(found.number))) > 0 {
			return port{}, refuse(PolicyInvalid, "policy %s: spec.target.port %d is not a port number: write one from 1 to 65535", s.Policy, found.number)
		}
	} else {
		declared, refusal := unique(s, pod, named(pod, s.Port.StrVal))
		if refusal != nil {
			return port{}, refusal
		}
		found = declared
	}
	if s.Interception == v1alpha1.InterceptPortEnv {
		declared, refusal := unique(s, pod, numbered(pod, found.number))
		if refusal != nil {
			return port{}, refusal
		}
		found = declared
	}
	if s.Interception == v1alpha1.InterceptRedirect {
		return found, nil // what the node forwards to the pod meets the rule
	}
	return found, hostPort(pod, found.number)
}

// unique wants exactly one port that the policy can mean.
func unique(s Sidecar, pod *corev1.Pod, found []port) (port, *RefusalError) {
	switch len(found) {
	case 0:
		return port{}, absent(s, pod)
	case 1:
		if len(validation.IsValidPortNum(int(found[0].number))) > 0 {
			return port{}, refuse(PortNotFound, "container %s declares the port %s with the number %d: write one from 1 to 65535", found[0].container.Name, s.Port.String(), found[0].number)
		}
		return found[0], nil
	default:
		return port{}, refuse(PortAmbiguous, "containers %s and %s both declare the port %s: leave it to the one that policy %s is for, once",
			found[0].container.Name, found[1].container.Name, s.Port.String(), s.Policy)
	}
}

// absent says why no TCP port is the one that the policy names.
func absent(s Sidecar, pod *corev1.Pod) *RefusalError {
	for _, c := range serving(pod) {
		for _, p := range c.Ports {
			if s.Port.Type == intstr.String && p.Name == s.Port.StrVal || s.Port.Type == intstr.Int && p.ContainerPort == s.Port.IntVal {
				return refuse(PortProtocol, "container %s declares the port %s for %s: HTTP needs TCP", c.Name, s.Port.String(), p.Protocol)
			}
		}
	}
	if s.Port.Type == intstr.Int {
		return refuse(PortNotFound, "no container declares the port %d, so that it is not known which of them the variable %s is for: declare it, or correct spec.target.port of policy %s", s.Port.IntVal, s.PortEnv, s.Policy)
	}
	return refuse(PortNotFound, "no container declares a port named %s: name the app's container port so, or correct spec.target.port of policy %s", s.Port.StrVal, s.Policy)
}

// hostPort refuses a port that the node forwards to. It cannot move to the sidecar: the kubelet forwards to no init container
// (https://github.com/kubernetes/kubernetes/blob/v1.37.2/pkg/kubelet/kuberuntime/kuberuntime_sandbox.go#L121).
func hostPort(pod *corev1.Pod, number int32) *RefusalError {
	for _, c := range serving(pod) {
		for _, p := range c.Ports {
			if p.ContainerPort == number && p.HostPort != 0 && tcp(p) {
				return refuse(HostPort, "container %s: hostPort %d leads to the app's port %d around the sidecar: remove the hostPort and use a Service", c.Name, p.HostPort, number)
			}
		}
	}
	return nil
}

// serving returns the containers whose ports a Service can reach: the app's and native sidecars, but not ours.
func serving(pod *corev1.Pod) []*corev1.Container {
	var list []*corev1.Container
	for i := range pod.Spec.Containers {
		list = append(list, &pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; native(c) && c.Name != ContainerName {
			list = append(list, c)
		}
	}
	return list
}

func native(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func tcp(p corev1.ContainerPort) bool {
	return cmp.Or(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP
}

// named returns the TCP ports of that name.
func named(pod *corev1.Pod, name string) []port {
	var list []port
	for _, c := range serving(pod) {
		for _, p := range c.Ports {
			if p.Name == name && tcp(p) {
				list = append(list, port{container: c, number: p.ContainerPort, name: p.Name})
			}
		}
	}
	return list
}

// numbered returns the TCP ports of that number.
func numbered(pod *corev1.Pod, number int32) []port {
	var list []port
	for _, c := range serving(pod) {
		for _, p := range c.Ports {
			if p.ContainerPort == number && tcp(p) {
				list = append(list, port{container: c, number: number, name: p.Name})
			}
		}
	}
	return list
}

// numbers returns every port number that the pod is known to use: declared ones, and those that probes and hooks ask.
func numbers(pod *corev1.Pod) map[int32]bool {
	used := map[int32]bool{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if Owned("initContainers", list[i].Name) {
				continue
			}
			for _, p := range list[i].Ports {
				used[p.ContainerPort] = true
			}
			for _, r := range references(&list[i]) {
				used[r.number()] = true
			}
		}
	}
	return used
}

func free(from int32, used map[int32]bool) int32 {
	for used[from] {
		from++
	}
	return from
}

// substitute returns the first name for the app's port that no container of the pod uses.
func substitute(pod *corev1.Pod, name string) string {
	taken := map[string]bool{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range list {
			for _, p := range c.Ports {
				taken[p.Name] = true
			}
		}
	}
	for attempt := 0; ; attempt++ {
		if substitute := candidate(name, attempt); !taken[substitute] {
			return substitute
		}
	}
}

// candidate is app-<name> where that is short enough for a port name, 15 bytes; then app-<hash>.
func candidate(name string, attempt int) string {
	if plain := "app-" + name; attempt == 0 && len(validation.IsValidPortName(plain)) == 0 {
		return plain
	}
	sum := sha256.Sum256([]byte(strconv.Itoa(attempt) + "/" + name))
	return "app-" + hex.EncodeToString(sum[:4])
}
