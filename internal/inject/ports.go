// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

const (
	upstreamFlag = "--upstream=http://127.0.0.1:"
	listenFlag   = "--listen=:"
	adminFlag    = "--admin=:"
)

// Traffic is how requests run through a pod that carries the sidecar.
type Traffic struct {
	// Name of the sidecar's port: the name that Services target.
	Name string
	// Sidecar, App and Admin are port numbers: where the sidecar listens, where the app does, where health and metrics are.
	Sidecar, App, Admin int32
}

// TrafficOf reads from an injected pod what Pod once decided; false when the pod does not carry the sidecar.
func TrafficOf(pod *corev1.Pod) (Traffic, bool) {
	c := sidecarIn(pod)
	if c == nil {
		return Traffic{}, false
	}
	t := Traffic{}
	for _, flag := range []struct {
		prefix string
		number *int32
	}{{upstreamFlag, &t.App}, {listenFlag, &t.Sidecar}, {adminFlag, &t.Admin}} {
		for _, arg := range c.Args {
			if text, found := strings.CutPrefix(arg, flag.prefix); found {
				number, err := strconv.ParseUint(text, 10, 16)
				if err != nil {
					return Traffic{}, false
				}
				*flag.number = int32(number)
			}
		}
	}
	for _, port := range c.Ports {
		if port.ContainerPort == t.Sidecar {
			t.Name = port.Name
		}
	}
	return t, t.Name != "" && t.App > 0 && t.Admin > 0
}

// intercept chooses the sidecar's ports and, for NamedPort, takes the app's port name over. It changes pod only when it succeeds.
func intercept(s Sidecar, pod *corev1.Pod) (Traffic, *RefusalError) {
	app, refusal := target(s, pod)
	if refusal != nil {
		return Traffic{}, refusal
	}
	t := Traffic{Name: PortName, App: app.number}
	if s.Interception == v1alpha1.InterceptNamedPort {
		t.Name = s.Port.StrVal
	} else if found := named(pod, PortName); len(found) > 0 {
		return Traffic{}, refuse(PortTaken, "container %s declares a port named %s, which is the sidecar's: give that port another name", found[0].container.Name, PortName)
	}
	used := numbers(pod)
	used[t.App] = true
	t.Sidecar = free(listenPort, used)
	used[t.Sidecar] = true
	t.Admin = free(adminPort, used)
	if t.Sidecar > 65535 || t.Admin > 65535 {
		return Traffic{}, refuse(PortTaken, "no port number from %d up is left for the sidecar: declare fewer ports", listenPort)
	}
	if s.Interception == v1alpha1.InterceptNamedPort {
		rename(app.container, s.Port.StrVal, substitute(pod, s.Port.StrVal))
	}
	return t, nil
}

// port is a declared TCP port, or for an undeclared number only that.
type port struct {
	container *corev1.Container
	number    int32
}

// target finds the app's port.
func target(s Sidecar, pod *corev1.Pod) (port, *RefusalError) {
	if s.Interception == v1alpha1.InterceptNamedPort {
		if s.Port.Type != intstr.String {
			return port{}, refuse(PortUnnamed, "policy %s: NamedPort takes a port's name over, and spec.target.port is the number %d: name the container port and write its name", s.Policy, s.Port.IntVal)
		}
		if s.Port.StrVal == PortName || s.Port.StrVal == AdminPortName {
			return port{}, refuse(PortTaken, "policy %s: the port name %s is the sidecar's own: give the app's port another name", s.Policy, s.Port.StrVal)
		}
	}
	if s.Port.Type == intstr.Int {
		if len(validation.IsValidPortNum(int(s.Port.IntVal))) > 0 {
			return port{}, refuse(PolicyInvalid, "policy %s: spec.target.port %d is not a port number: write one from 1 to 65535", s.Policy, s.Port.IntVal)
		}
		return port{number: s.Port.IntVal}, hostPort(pod, s.Port.IntVal)
	}
	found := named(pod, s.Port.StrVal)
	switch len(found) {
	case 0:
		return port{}, absent(s, pod)
	case 1:
		if len(validation.IsValidPortNum(int(found[0].number))) > 0 {
			return port{}, refuse(PortNotFound, "container %s declares the port %s with the number %d: write one from 1 to 65535", found[0].container.Name, s.Port.StrVal, found[0].number)
		}
		return found[0], hostPort(pod, found[0].number)
	default:
		return port{}, refuse(PortAmbiguous, "containers %s and %s both declare the port %s: leave the name to the one that policy %s is for",
			found[0].container.Name, found[1].container.Name, s.Port.StrVal, s.Policy)
	}
}

// absent says why no TCP port has the name.
func absent(s Sidecar, pod *corev1.Pod) *RefusalError {
	for _, c := range serving(pod) {
		for _, p := range c.Ports {
			if p.Name == s.Port.StrVal {
				return refuse(PortProtocol, "container %s declares the port %s for %s: HTTP needs TCP", c.Name, p.Name, p.Protocol)
			}
		}
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
				list = append(list, port{container: c, number: p.ContainerPort})
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
			if list[i].Name == ContainerName {
				continue
			}
			for _, p := range list[i].Ports {
				used[p.ContainerPort] = true
			}
			for _, reference := range references(&list[i]) {
				if reference.Type == intstr.Int {
					used[reference.IntVal] = true
				}
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

// rename gives the container's TCP port another name; probes and hooks that use the name follow it.
func rename(c *corev1.Container, from, to string) {
	for i := range c.Ports {
		if c.Ports[i].Name == from && tcp(c.Ports[i]) {
			c.Ports[i].Name = to
		}
	}
	for _, reference := range references(c) {
		if reference.Type == intstr.String && reference.StrVal == from {
			reference.StrVal = to
		}
	}
}

// references returns the ports that the container's probes and hooks name. A gRPC probe's port is always a number of the app's own.
func references(c *corev1.Container) []*intstr.IntOrString {
	var list []*intstr.IntOrString
	add := func(get *corev1.HTTPGetAction, socket *corev1.TCPSocketAction) {
		if get != nil {
			list = append(list, &get.Port)
		}
		if socket != nil {
			list = append(list, &socket.Port)
		}
	}
	for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if probe != nil {
			add(probe.HTTPGet, probe.TCPSocket)
		}
	}
	if c.Lifecycle != nil {
		for _, hook := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if hook != nil {
				add(hook.HTTPGet, hook.TCPSocket)
			}
		}
	}
	return list
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
