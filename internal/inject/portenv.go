// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

// unprivilegedPorts is the setting that lets a program without privileges listen on low ports.
const unprivilegedPorts = "net.ipv4.ip_unprivileged_port_start"

// move makes the app listen on t.App instead of t.Sidecar, by its environment variable. It changes pod only when it succeeds.
func (t *Traffic) move(s Sidecar, pod *corev1.Pod, app port) *RefusalError {
	if first := firstUnprivileged(pod); t.Sidecar < first {
		return refuse(PortPrivileged, "port %d is below %d and the sidecar has no privileges: let the app listen on a higher one, or set the sysctl %s in the pod's securityContext", t.Sidecar, first, unprivilegedPorts)
	}
	for _, c := range serving(pod) {
		if slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.ContainerPort == t.Sidecar && !tcp(p) }) {
			return refuse(PortProtocol, "container %s declares the port %d for another protocol as well, which the variable %s would move too: use NamedPort or Redirect", c.Name, t.Sidecar, s.PortEnv)
		}
	}
	value, was, refusal := redirected(app.container, s.PortEnv, t.Sidecar, t.App)
	if refusal != nil {
		return refusal
	}
	if app.name != "" {
		rename(app.container, app.name, substitute(pod, app.name))
	}
	t.Moved = Moved{Interception: v1alpha1.InterceptPortEnv, Env: s.PortEnv, Was: was}
	t.apply(pod, app.container, t.Sidecar, t.App)
	set(app.container, s.PortEnv, value)
	return nil
}

// moveBack undoes move.
func (t *Traffic) moveBack(pod *corev1.Pod) {
	found := numbered(pod, t.App)
	if len(found) == 0 {
		return
	}
	c := found[0].container
	t.apply(pod, c, t.App, t.Sidecar)
	if t.Moved.Was != "" {
		set(c, t.Moved.Env, t.Moved.Was)
		return
	}
	c.Env = slices.DeleteFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == t.Moved.Env })
}

// apply changes the number of the container's port, and of whatever in the pod asks it.
func (t *Traffic) apply(pod *corev1.Pod, c *corev1.Container, from, to int32) {
	for i := range c.Ports {
		if c.Ports[i].ContainerPort == from && tcp(c.Ports[i]) {
			c.Ports[i].ContainerPort = to
		}
	}
	follow(pod, from, to)
}

// redirected is the value that makes the variable name another port, and the one that it has; empty when the container does not set it.
// A listen address such as 0.0.0.0:8080 keeps all but its end.
func redirected(c *corev1.Container, name string, from, to int32) (value, was string, refusal *RefusalError) {
	set := slices.DeleteFunc(slices.Clone(c.Env), func(v corev1.EnvVar) bool { return v.Name != name })
	if len(set) == 0 {
		return strconv.Itoa(int(to)), "", nil
	}
	if len(set) > 1 || set[0].ValueFrom != nil {
		return "", "", refuse(EnvUnusable, "container %s sets the variable %s by reference or more than once, so that it cannot be changed: write its value, or leave it out", c.Name, name)
	}
	was = set[0].Value
	before, found := strings.CutSuffix(was, strconv.Itoa(int(from)))
	if !found || before != "" && strings.ContainsAny(before[len(before)-1:], "0123456789") {
		return "", "", refuse(EnvUnusable, "container %s declares the port %d, but its variable %s has a value that does not end in that number: make the two agree, or correct spec.target.portEnv", c.Name, from, name)
	}
	return before + strconv.Itoa(int(to)), was, nil
}

// set gives the variable its value. A new one comes first, so that others may refer to it.
func set(c *corev1.Container, name, value string) {
	for i := range c.Env {
		if c.Env[i].Name == name {
			c.Env[i].Value = value
			return
		}
	}
	c.Env = slices.Insert(c.Env, 0, corev1.EnvVar{Name: name, Value: value})
}

// firstUnprivileged is the lowest port that the sidecar can listen on: 1024, the kernel's default, unless the pod says otherwise.
// Some container runtimes lower it for every pod, but none says so.
func firstUnprivileged(pod *corev1.Pod) int32 {
	if pod.Spec.SecurityContext != nil {
		for _, sysctl := range pod.Spec.SecurityContext.Sysctls {
			if number, err := strconv.ParseUint(sysctl.Value, 10, 16); sysctl.Name == unprivilegedPorts && err == nil {
				return int32(number)
			}
		}
	}
	return 1024
}
