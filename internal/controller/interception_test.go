// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/idempotency-dev/operator/internal/inject"
	"github.com/idempotency-dev/operator/internal/inject/injecttest"
)

// TestStrippedCases: what the cache keeps tells of every pod that injection is tested with whether it could carry the sidecar, and if not, why.
func TestStrippedCases(t *testing.T) {
	for _, c := range injecttest.Cases(t, "../inject/testdata/in") {
		pod, sidecar := c.Decode(t), c.Sidecar(t)
		object, err := StripPod(pod)
		if err != nil {
			t.Fatal(err)
		}
		_, whole := inject.Pod(sidecar, pod)
		_, part := inject.Pod(sidecar, object.(*corev1.Pod))
		if diff := cmp.Diff(message(whole), message(part)); diff != "" {
			t.Errorf("%s: refusal differs (-whole +stripped):\n%s", c.Name, diff)
		}
	}
}

// TestWaysAround: with every interception, Services that lead to the sidecar are told from those that lead around it.
func TestWaysAround(t *testing.T) {
	for _, row := range []struct {
		spec    string
		enforce []intstr.IntOrString
		bypass  []intstr.IntOrString
	}{
		{`{"target":{"port":"http"}}`,
			[]intstr.IntOrString{intstr.FromString("http"), intstr.FromInt32(15600)},
			[]intstr.IntOrString{intstr.FromString("app-http"), intstr.FromInt32(8080)}},
		{`{"target":{"port":"http","interception":"PortEnv","portEnv":"PORT"}}`,
			[]intstr.IntOrString{intstr.FromString("http"), intstr.FromInt32(8080)},
			[]intstr.IntOrString{intstr.FromString("app-http"), intstr.FromInt32(15602)}},
		{`{"target":{"port":8080,"interception":"Redirect"}}`,
			[]intstr.IntOrString{intstr.FromString("http"), intstr.FromInt32(8080), intstr.FromString("idempotency"), intstr.FromInt32(15600)},
			[]intstr.IntOrString{intstr.FromInt32(15602)}},
		{`{"target":{"port":"http","interception":"None"}}`,
			[]intstr.IntOrString{intstr.FromString("idempotency"), intstr.FromInt32(15600)},
			[]intstr.IntOrString{intstr.FromString("http"), intstr.FromInt32(8080)}},
	} {
		c := injecttest.Case{Name: row.spec, Spec: []byte(row.spec), Pod: []byte(`{"metadata":{"name":"payments","labels":{"app":"payments"}},
			"spec":{"containers":[{"name":"app","image":"app:1","ports":[{"name":"http","containerPort":8080}]}]}}`)}
		pod, err := inject.Pod(c.Sidecar(t), c.Decode(t))
		if err != nil {
			t.Fatal(err)
		}
		object, err := StripPod(pod)
		if err != nil {
			t.Fatal(err)
		}
		ways := func(target intstr.IntOrString) []string {
			service := corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: corev1.ServiceSpec{
				Selector: payments, Ports: []corev1.ServicePort{{Port: 80, TargetPort: target}},
			}}
			return bypasses([]corev1.Pod{*object.(*corev1.Pod)}, []corev1.Service{service}, nil)
		}
		for _, target := range row.enforce {
			if found := ways(target); len(found) != 0 {
				t.Errorf("%s: a Service that targets %s: %v", row.spec, target.String(), found)
			}
		}
		for _, target := range row.bypass {
			if found := ways(target); len(found) != 1 || !strings.Contains(found[0], `Service "shop"`) {
				t.Errorf("%s: a Service that targets %s leads around the sidecar: %v", row.spec, target.String(), found)
			}
		}
	}
}
