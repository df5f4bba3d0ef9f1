// SPDX-License-Identifier: Apache-2.0

package inject

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// reference is a port that a probe or a hook of a container asks. A gRPC probe's is always a number.
type reference struct {
	port *intstr.IntOrString
	grpc *int32
	// host is empty where the pod itself is asked.
	host string
}

// number is 0 for a name.
func (r reference) number() int32 {
	switch {
	case r.grpc != nil:
		return *r.grpc
	case r.port.Type == intstr.Int:
		return r.port.IntVal
	default:
		return 0
	}
}

// name is empty for a number.
func (r reference) name() string {
	if r.port != nil && r.port.Type == intstr.String {
		return r.port.StrVal
	}
	return ""
}

func (r reference) set(number int32) {
	if r.grpc != nil {
		*r.grpc = number
		return
	}
	*r.port = intstr.FromInt32(number)
}

// references returns the ports that the container's probes and hooks ask.
func references(c *corev1.Container) []reference {
	var list []reference
	add := func(get *corev1.HTTPGetAction, socket *corev1.TCPSocketAction, grpc *corev1.GRPCAction) {
		if get != nil {
			list = append(list, reference{port: &get.Port, host: get.Host})
		}
		if socket != nil {
			list = append(list, reference{port: &socket.Port, host: socket.Host})
		}
		if grpc != nil {
			list = append(list, reference{grpc: &grpc.Port})
		}
	}
	for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if probe != nil {
			add(probe.HTTPGet, probe.TCPSocket, probe.GRPC)
		}
	}
	if c.Lifecycle != nil {
		for _, hook := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if hook != nil {
				add(hook.HTTPGet, hook.TCPSocket, nil)
			}
		}
	}
	return list
}

// rename gives the container's TCP port another name; probes and hooks that use the name follow it.
func rename(c *corev1.Container, from, to string) {
	for i := range c.Ports {
		if c.Ports[i].Name == from && tcp(c.Ports[i]) {
			c.Ports[i].Name = to
		}
	}
	for _, r := range references(c) {
		if r.name() == from {
			r.port.StrVal = to
		}
	}
}

// follow leads the probes and hooks of every container that ask the pod's port from, by its number, to the port to.
func follow(pod *corev1.Pod, from, to int32) {
	for _, c := range serving(pod) {
		for _, r := range references(c) {
			if r.host == "" && r.number() == from {
				r.set(to)
			}
		}
	}
}

// spell writes the port of that number as a number into the probes and hooks that ask it by its name: the name stays the port's.
func spell(pod *corev1.Pod, number int32) {
	for _, c := range serving(pod) {
		for _, p := range c.Ports {
			for _, r := range references(c) {
				if r.host == "" && p.ContainerPort == number && p.Name != "" && r.name() == p.Name {
					r.set(number)
				}
			}
		}
	}
}
