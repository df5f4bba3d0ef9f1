// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject"
)

var payments = map[string]string{"app": "payments"}

// injectedPod makes a pod as the webhook would let it in.
func (w *world) injectedPod(name string, p *v1alpha1.IdempotencyPolicy, image string) *corev1.Pod {
	w.t.Helper()
	return w.pod(name, payments, func(pod *corev1.Pod) {
		out, err := inject.Pod(inject.FromPolicy(p, image), pod)
		if err != nil {
			w.t.Fatal(err)
		}
		*pod = *out
	})
}

func (w *world) counts(name string) v1alpha1.PodsStatus {
	w.t.Helper()
	p, err := w.get(name)
	if err != nil || p.Status.Pods == nil {
		w.t.Fatalf("policy has no counts: %v", err)
	}
	return *p.Status.Pods
}

func TestInjected(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	p := w.policy("payments", nil)
	w.await("payments", v1alpha1.ConditionInjected, metav1.ConditionTrue, v1alpha1.ReasonNoPods)

	w.injectedPod("good", p, sidecarImage)
	w.await("payments", v1alpha1.ConditionInjected, metav1.ConditionTrue, v1alpha1.ReasonInjected)

	old := w.injectedPod("old", p, "registry.example.com/proxy:0.9")
	w.await("payments", v1alpha1.ConditionInjected, metav1.ConditionFalse, v1alpha1.ReasonRolloutPending)

	w.pod("network", payments, func(pod *corev1.Pod) { pod.Spec.HostNetwork = true; pod.Spec.Containers[0].Ports[0].HostPort = 8080 })
	if message := w.await("payments", v1alpha1.ConditionInjected, metav1.ConditionFalse, v1alpha1.ReasonUnsupported); !strings.Contains(message, "hostNetwork") {
		t.Errorf("the message %q does not say why", message)
	}

	bare := w.pod("bare", payments, nil)
	if message := w.await("payments", v1alpha1.ConditionInjected, metav1.ConditionFalse, v1alpha1.ReasonPodsMissingSidecar); !strings.Contains(message, "1 of 4 pods") {
		t.Errorf("the message %q does not count", message)
	}
	w.pod("out", map[string]string{"app": "payments", v1alpha1.InjectionLabel: v1alpha1.InjectionDisabled}, nil)
	w.pod("other", map[string]string{"app": "orders"}, nil)
	for _, pod := range []*corev1.Pod{old, bare} {
		if err := server.client.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
	w.await("payments", v1alpha1.ConditionInjected, metav1.ConditionFalse, v1alpha1.ReasonUnsupported)
	if diff := cmp.Diff(v1alpha1.PodsStatus{Matched: 2, Injected: 1, Unsupported: 1, Summary: "1/2"}, w.counts("payments")); diff != "" {
		t.Errorf("counts differ (-want +got):\n%s", diff)
	}

	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
	if err := server.client.Patch(t.Context(), ns, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"idempotency.dev/injection":null}}}`))); err != nil {
		t.Fatal(err)
	}
	w.await("payments", v1alpha1.ConditionInjected, metav1.ConditionFalse, v1alpha1.ReasonNamespaceNotEnabled)
}

// TestStrippedPods shows that what the cache keeps of a pod is enough to tell whether it could carry the sidecar.
func TestStrippedPods(t *testing.T) {
	w := &world{t: t, namespace: newNamespace(t)}
	p := &v1alpha1.IdempotencyPolicy{ObjectMeta: metav1.ObjectMeta{Name: "payments"}}
	p.Spec.Target.Port = intstr.FromString("http")
	p.Spec.Store.Postgres = &v1alpha1.PostgresStore{DSNSecretRef: v1alpha1.SecretKeyRef{Name: "db", Key: "dsn"}}
	sidecar := inject.FromPolicy(p, sidecarImage)
	for name, pod := range map[string]*corev1.Pod{
		"bare":     w.pod("bare", payments, nil),
		"injected": w.injectedPod("injected", p, sidecarImage),
		"network":  w.pod("network", payments, func(pod *corev1.Pod) { pod.Spec.HostNetwork = true; pod.Spec.Containers[0].Ports[0].HostPort = 8080 }),
		"windows":  w.pod("windows", payments, func(pod *corev1.Pod) { pod.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }),
		"unnamed":  w.pod("unnamed", payments, func(pod *corev1.Pod) { pod.Spec.Containers[0].Ports = nil }),
		"volume": w.pod("volume", payments, func(pod *corev1.Pod) {
			pod.Spec.Volumes = []corev1.Volume{{Name: "idempotency-dsn", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		}),
	} {
		object, err := StripPod(pod)
		if err != nil {
			t.Fatal(err)
		}
		stripped := object.(*corev1.Pod)
		if inject.Carries(sidecar, pod) != inject.Carries(sidecar, stripped) {
			t.Errorf("%s: carrying the sidecar does not survive stripping", name)
		}
		_, whole := inject.Pod(sidecar, pod)
		_, part := inject.Pod(sidecar, stripped)
		if diff := cmp.Diff(message(whole), message(part)); diff != "" {
			t.Errorf("%s: refusal differs (-whole +stripped):\n%s", name, diff)
		}
	}
	if _, err := StripPod("not a pod"); err == nil {
		t.Error("a string was stripped")
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestTrafficEnforced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	p := w.policy("payments", nil)
	w.injectedPod("good", p, sidecarImage)
	w.service("by-name", intstr.FromString("http"))
	w.service("metrics", intstr.FromInt32(9090))
	w.await("payments", v1alpha1.ConditionTrafficEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)

	bypass := w.service("by-number", intstr.FromInt32(8080))
	if message := w.await("payments", v1alpha1.ConditionTrafficEnforced, metav1.ConditionFalse, v1alpha1.ReasonBypassed); !strings.Contains(message, `"by-number"`) {
		t.Errorf("the message %q does not name the Service", message)
	}
	w.remove(bypass)
	w.await("payments", v1alpha1.ConditionTrafficEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)

	renamed := w.service("renamed", intstr.FromString("app-http"))
	w.await("payments", v1alpha1.ConditionTrafficEnforced, metav1.ConditionFalse, v1alpha1.ReasonBypassed)
	w.remove(renamed)
	w.await("payments", v1alpha1.ConditionTrafficEnforced, metav1.ConditionTrue, v1alpha1.ReasonEnforced)

	number, protocol := int32(8080), corev1.ProtocolTCP
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: w.namespace, Name: "by-hand"},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"10.1.2.3"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: w.namespace, Name: "good"},
		}},
		Ports: []discoveryv1.EndpointPort{{Port: &number, Protocol: &protocol}},
	}
	create(t, slice)
	if message := w.await("payments", v1alpha1.ConditionTrafficEnforced, metav1.ConditionFalse, v1alpha1.ReasonBypassed); !strings.Contains(message, `"by-hand"`) {
		t.Errorf("the message %q does not name the EndpointSlice", message)
	}
	w.remove(slice)
	w.await("payments", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

func (w *world) service(name string, target intstr.IntOrString) *corev1.Service {
	w.t.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec:       corev1.ServiceSpec{Selector: payments, Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: target}}},
	}
	create(w.t, service)
	return service
}

func (w *world) remove(o client.Object) {
	w.t.Helper()
	if err := server.client.Delete(w.t.Context(), o, client.GracePeriodSeconds(0)); err != nil {
		w.t.Fatal(err)
	}
}
