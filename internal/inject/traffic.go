// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

const (
	listenFlag = "--listen=:"
	adminFlag  = "--admin=:"
)

// upstreamFlag is followed by the app's port.
func upstreamFlag(scheme v1alpha1.Scheme) string {
	return "--upstream=" + strings.ToLower(string(cmp.Or(scheme, v1alpha1.SchemeHTTP))) + "://127.0.0.1:"
}

// Traffic is how requests run through a pod that carries the sidecar.
type Traffic struct {
	// Name of the sidecar's port: the name that Services target.
	Name string
	// Sidecar, App and Admin are port numbers: where the sidecar listens, where the app does, where health and metrics are.
	Sidecar, App, Admin int32
	// Moved is what PortEnv or Redirect changed; zero with NamedPort and None.
	Moved Moved
}

// Moved is the content of the annotation of that name: what PortEnv and Redirect need to undo what they did.
type Moved struct {
	Interception v1alpha1.Interception `json:"interception,omitempty"`
	// Env is the variable that moves the app with PortEnv. Was is its value before; empty: the pod did not set it.
	Env string `json:"env,omitempty"`
	Was string `json:"was,omitempty"`
	// Probes is the port that leads to the app, past the rule of Redirect, for probes and hooks.
	Probes int32 `json:"probes,omitempty"`
}

// Around is the port on the pod's address that leads to the app without the sidecar.
func (t Traffic) Around() int32 {
	if t.Moved.Interception == v1alpha1.InterceptRedirect {
		return t.Moved.Probes
	}
	return t.App
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
	}{
		{upstreamFlag(v1alpha1.SchemeHTTP), &t.App}, {upstreamFlag(v1alpha1.SchemeH2C), &t.App}, {upstreamFlag(v1alpha1.SchemeHTTPS), &t.App},
		{listenFlag, &t.Sidecar}, {adminFlag, &t.Admin},
	} {
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
	if record := pod.Annotations[v1alpha1.MovedAnnotation]; record != "" && json.Unmarshal([]byte(record), &t.Moved) != nil {
		return Traffic{}, false
	}
	return t, t.Name != "" && t.App > 0 && t.Admin > 0
}

// record is the annotation.
func (m Moved) record() string {
	encoded, err := json.Marshal(m)
	if err != nil {
		panic(err) // strings and a number can be marshalled
	}
	return string(encoded)
}

// intercept chooses the sidecar's ports and leads traffic to it. It changes pod only when it succeeds.
func intercept(s Sidecar, pod *corev1.Pod) (Traffic, *RefusalError) {
	app, refusal := target(s, pod)
	if refusal != nil {
		return Traffic{}, refusal
	}
	t := Traffic{Name: PortName, App: app.number}
	if s.takesName() && app.name != "" {
		t.Name = app.name
		if app.name == PortName || app.name == AdminPortName {
			return Traffic{}, refuse(PortTaken, "policy %s: the port name %s is the sidecar's own: give the app's port another name", s.Policy, app.name)
		}
	} else if found := named(pod, PortName); len(found) > 0 {
		return Traffic{}, refuse(PortTaken, "container %s declares a port named %s, which is the sidecar's: give that port another name", found[0].container.Name, PortName)
	}
	if refusal := t.number(s, pod); refusal != nil {
		return Traffic{}, refusal
	}
	switch s.Interception {
	case v1alpha1.InterceptNamedPort:
		rename(app.container, app.name, substitute(pod, app.name))
	case v1alpha1.InterceptPortEnv:
		return t, t.move(s, pod, app)
	case v1alpha1.InterceptRedirect:
		spell(pod, t.App)
		follow(pod, t.App, t.Moved.Probes)
	case v1alpha1.InterceptNone:
	}
	return t, nil
}

// number chooses ports that nothing in the pod is known to use.
func (t *Traffic) number(s Sidecar, pod *corev1.Pod) *RefusalError {
	used := numbers(pod)
	used[t.App] = true
	highest := int32(0)
	choose := func(from int32) int32 {
		highest = free(from, used)
		used[highest] = true
		return highest
	}
	if s.Interception == v1alpha1.InterceptPortEnv {
		t.Sidecar = t.App
	} else {
		t.Sidecar = choose(listenPort)
	}
	t.Admin = choose(adminPort)
	switch s.Interception {
	case v1alpha1.InterceptPortEnv:
		t.App = choose(substitutePort)
	case v1alpha1.InterceptRedirect:
		t.Moved = Moved{Interception: s.Interception, Probes: choose(substitutePort)}
	default:
	}
	if highest > 65535 || t.Admin > 65535 {
		return refuse(PortTaken, "no port number from %d up is left for the sidecar: declare fewer ports", listenPort)
	}
	return nil
}

// takesName reports whether the name of the app's port becomes the sidecar's.
func (s Sidecar) takesName() bool {
	return s.Interception == v1alpha1.InterceptNamedPort || s.Interception == v1alpha1.InterceptPortEnv
}

// restore undoes what an older sidecar changed outside of itself.
func restore(pod *corev1.Pod) {
	t, ok := TrafficOf(pod)
	if !ok {
		return
	}
	for _, app := range numbered(pod, t.App) {
		if t.Name != PortName && substituted(pod, app.name, t.Name) {
			rename(app.container, app.name, t.Name)
			break
		}
	}
	switch t.Moved.Interception {
	case v1alpha1.InterceptPortEnv:
		t.moveBack(pod)
	case v1alpha1.InterceptRedirect:
		follow(pod, t.Moved.Probes, t.App)
		pod.Spec.InitContainers = without(pod.Spec.InitContainers, RedirectName)
	default:
	}
}

// mend says what in a pod keeps PortEnv or Redirect from working, beside the port itself.
func mend(s Sidecar, pod *corev1.Pod) *RefusalError {
	if s.Interception != v1alpha1.InterceptRedirect {
		return nil
	}
	if s.PodSecurity == "baseline" || s.PodSecurity == "restricted" {
		return refuse(PodSecurity, "policy %s: Redirect adds an init container with the capability NET_ADMIN, which the Pod Security Standard %s of the namespace forbids: use NamedPort or PortEnv, or label the namespace pod-security.kubernetes.io/enforce: privileged", s.Policy, s.PodSecurity)
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range list {
			if c.Name == "istio-proxy" || c.Name == "linkerd-proxy" {
				return refuse(MeshRedirects, "container %s redirects the pod's traffic as well, and the sidecar would be given what is encrypted for it: use NamedPort or PortEnv", c.Name)
			}
		}
	}
	return nil
}

// text is a port as a flag of the sidecar has it.
func text(flag string, port int32) string { return fmt.Sprintf("%s%d", flag, port) }
