// SPDX-License-Identifier: Apache-2.0

package inject_test

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject"
	"github.com/idempotency-dev/operator/internal/inject/injecttest"
)

var update = flag.Bool("update", false, "write the golden files of testdata/out")

// TestGolden shows every pod with its sidecar, or why it has none.
func TestGolden(t *testing.T) {
	cases := injecttest.Cases(t, "testdata/in")
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			pod, err := inject.Pod(c.Sidecar(t), c.Decode(t))
			if refused := strings.HasPrefix(c.Name, "refused-"); refused != (err != nil) {
				t.Fatalf("%s: refused = %v, error %v", c.Why, refused, err)
			}
			golden(t, c.Name, "# "+c.Why+"\n"+render(t, pod, err))
		})
	}
	files, err := filepath.Glob("testdata/out/*.yaml")
	if err != nil || len(files) != len(cases) {
		t.Errorf("%d golden files for %d cases, %v: remove those whose case is gone", len(files), len(cases), err)
	}
}

// render writes the pod, or the refusal.
func render(t *testing.T, pod *corev1.Pod, err error) string {
	t.Helper()
	var value any = pod
	if err != nil {
		var refusal *inject.RefusalError
		if !errors.As(err, &refusal) {
			t.Fatalf("error of type %T: %v", err, err)
		}
		value = refusal
	}
	rendered, err := yaml.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(rendered)
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata/out", name+".yaml")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: run with -update and read the result", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// TestProperties holds for every pod.
func TestProperties(t *testing.T) {
	for _, c := range injecttest.Cases(t, "testdata/in") {
		t.Run(c.Name, func(t *testing.T) { properties(t, c.Sidecar(t), c.Decode(t)) })
	}
}

// properties are what must hold of any pod and sidecar.
func properties(t *testing.T, s inject.Sidecar, pod *corev1.Pod) {
	t.Helper()
	before := marshal(t, pod)
	once, err := inject.Pod(s, pod)
	if got := marshal(t, pod); got != before {
		t.Fatalf("the pod given was changed:\n%s", cmp.Diff(before, got))
	}
	if err != nil {
		var refusal *inject.RefusalError
		if !errors.As(err, &refusal) || refusal.Reason == "" || refusal.Message == "" || once != nil {
			t.Fatalf("an error is a refusal with reason and message, and no pod: %#v, %v", err, once)
		}
		return
	}
	again, err := inject.Pod(s, pod)
	if err != nil || marshal(t, again) != marshal(t, once) {
		t.Fatalf("the same pod gave two results: %v\n%s", err, cmp.Diff(once, again))
	}
	twice, err := inject.Pod(s, once)
	if err != nil || marshal(t, twice) != marshal(t, once) {
		t.Fatalf("injected twice is not injected once: %v\n%s", err, cmp.Diff(once, twice))
	}
	if !inject.Carries(s, once) {
		t.Fatal("the injected pod does not carry its sidecar")
	}
	replaced(t, s, once)
}

// replaced checks that another sidecar in the place of the first makes the pod that it would have made alone.
func replaced(t *testing.T, s inject.Sidecar, once *corev1.Pod) {
	t.Helper()
	newer := s
	newer.Image = "registry.example.com/idempotency-proxy:2.0.0"
	other, err := inject.Pod(newer, once)
	if err != nil {
		t.Fatalf("a newer sidecar was refused: %v", err)
	}
	back, err := inject.Pod(s, other)
	if err != nil || marshal(t, back) != marshal(t, once) {
		t.Fatalf("there and back again is another pod: %v\n%s", err, cmp.Diff(once, back))
	}
}

func marshal(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	encoded, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

// TestForeignChanges: what others do to the injected pod is theirs, as long as traffic still meets the sidecar.
func TestForeignChanges(t *testing.T) {
	s := inject.FromPolicy(injecttest.Policy(), injecttest.DefaultImage)
	for _, row := range []struct {
		name, why string
		change    func(*corev1.Pod)
		refused   inject.Reason
	}{
		{"mirror", "a registry mirror rewrites every image", func(p *corev1.Pod) { p.Spec.InitContainers[0].Image = "mirror.example.com/proxy:1" }, ""},
		{"mount", "the API server mounts the service account's token into every container", func(p *corev1.Pod) {
			c := &p.Spec.InitContainers[0]
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "kube-api-access", MountPath: "/var/run/secrets"})
		}, ""},
		{"before", "another injector puts its own native sidecar before ours", func(p *corev1.Pod) {
			always := corev1.ContainerRestartPolicyAlways
			p.Spec.InitContainers = append([]corev1.Container{{Name: "mesh", RestartPolicy: &always}}, p.Spec.InitContainers...)
		}, ""},
		{"behind", "another injector appends a container", func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "shipper"})
		}, ""},
		{"port", "a container that comes later declares the port's name, and a Service would prefer it", func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "edge", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}})
		}, inject.PortAmbiguous},
		{"network", "the pod moves to the node's network", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, inject.HostNetwork},
	} {
		t.Run(row.name, func(t *testing.T) {
			pod, err := inject.Pod(s, payments())
			if err != nil {
				t.Fatal(err)
			}
			row.change(pod)
			got, err := inject.Pod(s, pod)
			if reason := reasonOf(err); reason != row.refused {
				t.Fatalf("%s: refused with %q, want %q", row.why, reason, row.refused)
			}
			if err == nil && marshal(t, got) != marshal(t, pod) {
				t.Errorf("%s: the pod was changed:\n%s", row.why, cmp.Diff(pod, got))
			}
		})
	}
}

func reasonOf(err error) inject.Reason {
	var refusal *inject.RefusalError
	if errors.As(err, &refusal) {
		return refusal.Reason
	}
	return ""
}

func payments() *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Name, pod.Labels = "payments", map[string]string{"app": "payments"}
	pod.Spec.Containers = []corev1.Container{{Name: "app", Image: "app:1", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}}
	return pod
}

// TestPortsMove: another injector that came later wants the number that the sidecar has, and one of the two could not start.
func TestPortsMove(t *testing.T) {
	s := inject.FromPolicy(injecttest.Policy(), injecttest.DefaultImage)
	pod, err := inject.Pod(s, payments())
	if err != nil {
		t.Fatal(err)
	}
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "mesh", Ports: []corev1.ContainerPort{{ContainerPort: 15600}}})
	properties(t, s, pod)
	moved, err := inject.Pod(s, pod)
	if err != nil {
		t.Fatal(err)
	}
	want := inject.Traffic{Name: "http", App: 8080, Sidecar: 15601, Admin: 15602}
	if got, ok := inject.TrafficOf(moved); !ok || got != want {
		t.Errorf("traffic %+v, %v, want %+v", got, ok, want)
	}
	if got := moved.Spec.Containers[0].Ports[0].Name; got != "app-http" {
		t.Errorf("the app's port is named %s, want app-http", got)
	}
}

// TestPortsRunOut: the last free number is used, and then none is.
func TestPortsRunOut(t *testing.T) {
	s := inject.FromPolicy(injecttest.Policy(), injecttest.DefaultImage)
	for _, row := range []struct {
		name    string
		highest int32
		reason  inject.Reason
	}{{"two are left", 65533, ""}, {"one is left", 65534, inject.PortTaken}, {"none is left", 65535, inject.PortTaken}} {
		t.Run(row.name, func(t *testing.T) {
			pod := payments()
			for number := int32(15600); number <= row.highest; number++ {
				pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, corev1.ContainerPort{ContainerPort: number})
			}
			out, err := inject.Pod(s, pod)
			if reasonOf(err) != row.reason {
				t.Fatalf("refused with %v, want %q", err, row.reason)
			}
			if err != nil {
				return
			}
			want := inject.Traffic{Name: "http", App: 8080, Sidecar: 65534, Admin: 65535}
			if got, ok := inject.TrafficOf(out); !ok || got != want {
				t.Errorf("traffic %+v, %v, want %+v", got, ok, want)
			}
		})
	}
}

// TestTrafficOf reads back what was injected, and nothing from pods that were not.
func TestTrafficOf(t *testing.T) {
	p := injecttest.Policy()
	pod, err := inject.Pod(inject.FromPolicy(p, injecttest.DefaultImage), payments())
	if err != nil {
		t.Fatal(err)
	}
	want := inject.Traffic{Name: "http", App: 8080, Sidecar: 15600, Admin: 15601}
	if got, ok := inject.TrafficOf(pod); !ok || got != want {
		t.Errorf("traffic %+v, %v, want %+v", got, ok, want)
	}
	for scheme, upstream := range map[v1alpha1.Scheme]string{v1alpha1.SchemeHTTP: "http", v1alpha1.SchemeH2C: "h2c", v1alpha1.SchemeHTTPS: "https"} {
		p.Spec.Target.Scheme = scheme
		out, err := inject.Pod(inject.FromPolicy(p, injecttest.DefaultImage), payments())
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := inject.TrafficOf(out); !ok || got != want || !slices.Contains(out.Spec.InitContainers[0].Args, "--upstream="+upstream+"://127.0.0.1:8080") {
			t.Errorf("%s: traffic %+v, %v, arguments %v", scheme, got, ok, out.Spec.InitContainers[0].Args)
		}
	}
	if got, ok := inject.TrafficOf(payments()); ok {
		t.Errorf("a pod without a sidecar has traffic %+v", got)
	}
	pod.Spec.InitContainers[0].Args = []string{"--upstream=http://127.0.0.1:99999", "--listen=:15600"}
	if got, ok := inject.TrafficOf(pod); ok {
		t.Errorf("arguments that we never write were read as %+v", got)
	}
}

// TestEncryptionChanges: a pod whose sidecar had other encryption keys, or none, is the one that would have been made alone.
func TestEncryptionChanges(t *testing.T) {
	sidecar := func(name, key string) inject.Sidecar {
		p := injecttest.Policy()
		if name != "" {
			p.Spec.Store.EncryptionKeySecretRef = &v1alpha1.EncryptionKeySecretRef{Name: name, Key: key}
		}
		return inject.FromPolicy(p, injecttest.DefaultImage)
	}
	sidecars := []inject.Sidecar{sidecar("", ""), sidecar("one", ""), sidecar("two", ""), sidecar("one", "other")}
	seen := map[string]bool{}
	for _, from := range sidecars {
		for _, to := range sidecars {
			before, err := inject.Pod(from, payments())
			if err != nil {
				t.Fatal(err)
			}
			changed, err := inject.Pod(to, before)
			if err != nil {
				t.Fatal(err)
			}
			alone, err := inject.Pod(to, payments())
			if err != nil {
				t.Fatal(err)
			}
			if marshal(t, changed) != marshal(t, alone) {
				t.Errorf("(-alone +changed):\n%s", cmp.Diff(alone, changed))
			}
			seen[inject.Hash(to)] = true
		}
	}
	if len(seen) != len(sidecars) {
		t.Errorf("%d hashes of %d sidecars", len(seen), len(sidecars))
	}
}

// TestHash tells sidecars apart that are rendered differently, and only those.
func TestHash(t *testing.T) {
	base := inject.Hash(inject.FromPolicy(injecttest.Policy(), injecttest.DefaultImage))
	for _, row := range []struct {
		name    string
		change  func(*v1alpha1.IdempotencyPolicy)
		differs bool
	}{
		{"nothing", func(*v1alpha1.IdempotencyPolicy) {}, false},
		{"the routes, which reach the sidecar by its ConfigMap", func(p *v1alpha1.IdempotencyPolicy) { p.Spec.Routes[0].Path = "/orders" }, false},
		{"the generation", func(p *v1alpha1.IdempotencyPolicy) { p.Generation = 7 }, false},
		{"the defaults spelled out", func(p *v1alpha1.IdempotencyPolicy) {
			p.Spec.Sidecar = v1alpha1.Sidecar{Image: injecttest.DefaultImage, LogLevel: "info"}
		}, false},
		{"the image", func(p *v1alpha1.IdempotencyPolicy) { p.Spec.Sidecar.Image = "proxy:2" }, true},
		{"the log level", func(p *v1alpha1.IdempotencyPolicy) { p.Spec.Sidecar.LogLevel = "debug" }, true},
		{"the Secret", func(p *v1alpha1.IdempotencyPolicy) { p.Spec.Store.Postgres.DSNSecretRef.Name = "other" }, true},
		{"the Secret's key", func(p *v1alpha1.IdempotencyPolicy) { p.Spec.Store.Postgres.DSNSecretRef.Key = "other" }, true},
		{"tracing", func(p *v1alpha1.IdempotencyPolicy) {
			p.Spec.Sidecar.Tracing = &v1alpha1.Tracing{Endpoint: "http://collector:4318"}
		}, true},
		{"encryption keys", func(p *v1alpha1.IdempotencyPolicy) {
			p.Spec.Store.EncryptionKeySecretRef = &v1alpha1.EncryptionKeySecretRef{Name: "keys"}
		}, true},
		{"the policy's name", func(p *v1alpha1.IdempotencyPolicy) { p.Name = "other" }, true},
		{"the port", func(p *v1alpha1.IdempotencyPolicy) { p.Spec.Target.Port.StrVal = "web" }, true},
		{"the scheme", func(p *v1alpha1.IdempotencyPolicy) { p.Spec.Target.Scheme = v1alpha1.SchemeH2C }, true},
		{"the scheme, written", func(p *v1alpha1.IdempotencyPolicy) { p.Spec.Target.Scheme = v1alpha1.SchemeHTTP }, false},
		{"the interception", func(p *v1alpha1.IdempotencyPolicy) { p.Spec.Target.Interception = v1alpha1.InterceptNone }, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := injecttest.Policy()
			row.change(p)
			if differs := inject.Hash(inject.FromPolicy(p, injecttest.DefaultImage)) != base; differs != row.differs {
				t.Errorf("another hash: %v, want %v", differs, row.differs)
			}
		})
	}
}
