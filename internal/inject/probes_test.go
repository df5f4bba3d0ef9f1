// SPDX-License-Identifier: Apache-2.0

package inject_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/idempotency-dev/operator/internal/inject"
	"github.com/idempotency-dev/operator/internal/inject/injecttest"
)

// TestProbesFollowTheApp: whatever a probe or hook asked before, the app's port or another, it asks after the injection, around the sidecar.
func TestProbesFollowTheApp(t *testing.T) {
	for _, c := range injecttest.Cases(t, "testdata/in") {
		before := c.Decode(t)
		if _, copied := inject.TrafficOf(before); copied {
			continue // its probes ask what an older sidecar left
		}
		after, err := inject.Pod(c.Sidecar(t), before)
		if err != nil {
			continue
		}
		traffic, ok := inject.TrafficOf(after)
		if !ok {
			t.Fatalf("%s: no traffic", c.Name)
		}
		was := asked(before)
		for name, port := range was {
			if port == original(t, c, before) {
				was[name] = traffic.Around()
			}
		}
		if diff := cmp.Diff(was, asked(after)); diff != "" {
			t.Errorf("%s: probes ask other ports (-want +got):\n%s", c.Name, diff)
		}
	}
}

// original is the app's port before the injection.
func original(t *testing.T, c injecttest.Case, pod *corev1.Pod) int32 {
	t.Helper()
	port := c.Sidecar(t).Port
	if port.Type == intstr.Int {
		return port.IntVal
	}
	for _, container := range append(append([]corev1.Container{}, pod.Spec.Containers...), pod.Spec.InitContainers...) {
		native := container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways
		for _, p := range container.Ports {
			if p.Name == port.StrVal && (p.Protocol == "" || p.Protocol == corev1.ProtocolTCP) && (native || !isInit(pod, container.Name)) {
				return p.ContainerPort
			}
		}
	}
	t.Fatalf("%s: no port %s", c.Name, port.StrVal)
	return 0
}

func isInit(pod *corev1.Pod, name string) bool {
	for _, c := range pod.Spec.InitContainers {
		if c.Name == name {
			return true
		}
	}
	return false
}

// asked are the numbers that the kubelet asks at the pod's address, by container and probe. Ours are left out.
func asked(pod *corev1.Pod) map[string]int32 {
	ports := map[string]int32{}
	for _, c := range append(append([]corev1.Container{}, pod.Spec.InitContainers...), pod.Spec.Containers...) {
		if inject.Owned("initContainers", c.Name) {
			continue
		}
		add := func(name, host string, port intstr.IntOrString) {
			if host != "" {
				return
			}
			ports[c.Name+"/"+name] = port.IntVal
			for _, p := range c.Ports {
				if port.Type == intstr.String && p.Name == port.StrVal {
					ports[c.Name+"/"+name] = p.ContainerPort
				}
			}
		}
		for name, probe := range map[string]*corev1.Probe{"startup": c.StartupProbe, "live": c.LivenessProbe, "ready": c.ReadinessProbe} {
			if probe != nil && probe.GRPC != nil {
				add(name, "", intstr.FromInt32(probe.GRPC.Port))
			}
			if probe != nil && probe.HTTPGet != nil {
				add(name, probe.HTTPGet.Host, probe.HTTPGet.Port)
			}
			if probe != nil && probe.TCPSocket != nil {
				add(name, probe.TCPSocket.Host, probe.TCPSocket.Port)
			}
		}
		if c.Lifecycle != nil {
			for name, hook := range map[string]*corev1.LifecycleHandler{"start": c.Lifecycle.PostStart, "stop": c.Lifecycle.PreStop} {
				if hook != nil && hook.HTTPGet != nil {
					add(name, hook.HTTPGet.Host, hook.HTTPGet.Port)
				}
			}
		}
	}
	return ports
}
