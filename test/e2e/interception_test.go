// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const paths = "idempotency-e2e-paths"

// interceptions are the ways in which traffic comes to the sidecar, and what Services target with each.
var interceptions = []struct {
	name, target string
	services     []string
	// byAddress: whoever asks the app's port at the pod's own address meets the sidecar as well.
	byAddress bool
}{
	{"namedport", "{port: http}", []string{"http"}, false},
	{"portenv", "{port: 8080, interception: PortEnv, portEnv: PORT}", []string{"8080", "http"}, true},
	{"redirect", "{port: http, interception: Redirect}", []string{"8080", "http"}, true},
	{"none", "{port: http, interception: None}", []string{"idempotency"}, false},
}

// TestInterception sends traffic by every interception, through Services as its users have them.
func TestInterception(t *testing.T) {
	ctx, c, db := t.Context(), shared.cluster, shared.database
	must(t, db.createDatabase(ctx, "paths"))
	must(t, c.namespace(ctx, paths))
	_, err := c.kubectl(ctx, "label", "namespace", paths, "pod-security.kubernetes.io/enforce-") // Redirect needs NET_ADMIN
	must(t, err)
	t.Cleanup(func() { _, _ = c.kubectl(context.WithoutCancel(ctx), "delete", "namespace", paths, "--wait=false") })
	must(t, c.secret(ctx, paths, "payments-db", map[string]string{"dsn": db.dsn("paths", "idem_sidecar"), "admin-dsn": db.dsn("paths", "idem_operator")}))
	_, err = c.kubectl(ctx, "-n", paths, "apply", "-f", "testdata/client.yaml")
	must(t, err)
	_, err = c.kubectlWith(ctx, payments("neighbour")+service("neighbour", "neighbour", "8080", 8080), "-n", paths, "apply", "-f", "-")
	must(t, err)
	must(t, c.ready(ctx, paths, "neighbour"))
	for _, mode := range interceptions {
		_, err := c.applyPolicy(ctx, paths, mode.name, fmt.Sprintf(`
  selector: {matchLabels: {policy: %s}}
  target: %s
  store: {postgres: {dsnSecretRef: {name: payments-db, key: dsn}, adminDSNSecretRef: {name: payments-db, key: admin-dsn}}}
  client: {shared: {}}
  routes:
  - {name: pay, methods: [POST], path: /payments}
`, mode.name, mode.target))
		must(t, err)
	}
	for _, mode := range interceptions {
		eventually(t, 90*time.Second, func() error { return c.condition(ctx, paths, mode.name, "StoreHealthy", "True", "") })
		manifest := payments(mode.name) + dead(mode.name)
		for i, target := range mode.services {
			manifest += service(fmt.Sprint(mode.name, "-", i), mode.name, target, 80)
		}
		_, err := c.kubectlWith(ctx, manifest, "-n", paths, "apply", "-f", "-")
		must(t, err)
	}
	must(t, c.ready(ctx, paths, "client"))
	for _, mode := range interceptions {
		t.Run(mode.name, func(t *testing.T) {
			must(t, c.ready(ctx, paths, mode.name))
			var urls []string
			for i := range mode.services {
				urls = append(urls, fmt.Sprintf("http://%s-%d/payments", mode.name, i))
			}
			if mode.byAddress {
				pods, err := c.pods(ctx, paths, mode.name)
				must(t, err)
				urls = append(urls, fmt.Sprintf("http://%s:8080/payments", pods[0].Status.PodIP))
			}
			for i, url := range urls {
				protected(t, url, fmt.Sprint(mode.name, i))
			}
			eventually(t, 60*time.Second, func() error { return c.condition(ctx, paths, mode.name, "TrafficEnforced", "True", "Enforced") })
			t.Run("init containers have the network", func(t *testing.T) { testInitEgress(t, mode.name) })
			t.Run("probes test the app", func(t *testing.T) { testDeadApp(t, mode.name) })
			t.Run("the pod reaches others", func(t *testing.T) { testEgress(t, mode.name) })
		})
	}
	t.Run("the redirect outlives containers", testRedirectOutlives)
}

// protected sends one payment twice, and another one without a key, which only the sidecar refuses.
func protected(t *testing.T, url, key string) {
	t.Helper()
	pay := func(key string) reply {
		args := []string{"--method", "POST", "--url", url, "--body", `{"amount":1,"currency":"EUR"}`, "--header", "Content-Type: application/json"}
		if key != "" {
			args = append(args, "--header", "Idempotency-Key: "+key)
		}
		replies, err := shared.cluster.fromPodIn(t.Context(), paths, args...)
		must(t, err)
		return replies[0]
	}
	first, again := pay(key), pay(key)
	if first.Status != http.StatusCreated || again.Body != first.Body || again.Header.Get("Idempotent-Replayed") != "true" {
		t.Fatalf("%s: %d %q, then %d %q", url, first.Status, first.Body, again.Status, again.Body)
	}
	if bare := pay(""); bare.Status != http.StatusBadRequest {
		t.Fatalf("%s leads around the sidecar: a payment without a key got %d %q", url, bare.Status, bare.Body)
	}
	say("%s: executed once, replayed, refused without a key", url)
}

// testInitEgress reads what the pod's own init container got from a neighbour.
func testInitEgress(t *testing.T, app string) {
	pods, err := shared.cluster.pods(t.Context(), paths, app)
	must(t, err)
	log, err := shared.cluster.kubectl(t.Context(), "-n", paths, "logs", pods[0].Name, "-c", "setup")
	must(t, err)
	if !strings.Contains(log, `"status":200`) {
		t.Fatalf("the init container got %s", log)
	}
}

// testDeadApp looks at a pod whose app does not listen: the kubelet has to notice, although the sidecar does listen.
func testDeadApp(t *testing.T, mode string) {
	eventually(t, 90*time.Second, func() error {
		pod := &corev1.Pod{}
		if err := shared.cluster.client.Get(t.Context(), client.ObjectKey{Namespace: paths, Name: "dead-" + mode}, pod); err != nil {
			return err
		}
		if s := pod.Status.InitContainerStatuses; len(s) == 0 || !s[0].Ready {
			return errors.New("the sidecar is not ready")
		}
		if s := pod.Status.ContainerStatuses; len(s) == 0 || s[0].State.Running == nil {
			return errors.New("the app does not run")
		} else if s[0].Ready {
			t.Fatal("the app is Ready and does not listen: its probe was answered by another")
		}
		events, err := shared.cluster.kubectl(t.Context(), "-n", paths, "get", "events", "--field-selector", "reason=Unhealthy,involvedObject.name=dead-"+mode, "-o", "jsonpath={.items[*].involvedObject.fieldPath}")
		if err != nil {
			return err
		}
		if !strings.Contains(events, "spec.containers{main}") {
			return errors.New("the probe was not answered yet")
		}
		return nil
	})
}

func testEgress(t *testing.T, mode string) {
	out, err := shared.cluster.kubectl(t.Context(), "-n", paths, "exec", "dead-"+mode, "-c", "main", "--", "/client", "--url", "http://neighbour:8080/healthz")
	must(t, err)
	if !strings.Contains(out, `"status":200`) {
		t.Fatalf("a neighbour on the app's own number answered %s", out)
	}
}

// testRedirectOutlives kills the sidecar, and then the app, while requests without a key come: none of them may reach the app.
func testRedirectOutlives(t *testing.T) {
	ctx, c := t.Context(), shared.cluster
	pods, err := c.pods(ctx, paths, "redirect")
	must(t, err)
	pod := pods[0].Name
	restarts := func(container string) int32 {
		p := &corev1.Pod{}
		must(t, c.client.Get(ctx, client.ObjectKey{Namespace: paths, Name: pod}, p))
		for _, s := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
			if s.Name == container && s.Ready {
				return s.RestartCount
			}
		}
		return 0
	}
	for _, row := range []struct{ program, container string }{{"/proxy", "idempotency-proxy"}, {"/sampleapp", "app"}} {
		kill(t, pod, row.program)
		asked := 0
		eventually(t, 90*time.Second, func() error {
			out, err := c.kubectl(ctx, "-n", paths, "exec", "deployment/client", "--", "/client", "--method", "POST", "--count", "20", "--concurrency", "4", "--timeout", "2s",
				"--url", fmt.Sprintf("http://%s:8080/payments", pods[0].Status.PodIP), "--body", `{"amount":1,"currency":"EUR"}`, "--header", "Content-Type: application/json")
			if err != nil {
				return err
			}
			asked += strings.Count(out, "\n")
			if strings.Contains(out, `"status":201`) {
				t.Fatalf("while %s was away, a payment without a key was made: %s", row.container, out)
			}
			if restarts(row.container) == 0 {
				return fmt.Errorf("%s has not restarted", row.container)
			}
			return nil
		})
		say("%s of %s was killed and is back; of %d payments without a key none was made", row.container, pod, asked)
		protected(t, fmt.Sprintf("http://%s:8080/payments", pods[0].Status.PodIP), "after-"+row.container)
	}
}

// kill ends, as the kernel does when memory runs out, the program of that name in the pod: one that runs on this machine.
func kill(t *testing.T, pod, program string) {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*")
	must(t, err)
	for _, process := range processes {
		environment, err := os.ReadFile(filepath.Join(process, "environ"))
		if err != nil || !strings.Contains("\x00"+string(environment), "\x00HOSTNAME="+pod+"\x00") {
			continue
		}
		if line, err := os.ReadFile(filepath.Join(process, "cmdline")); err != nil || !strings.HasPrefix(string(line), program+"\x00") && string(line) != program+"\x00" {
			continue
		}
		id, err := strconv.Atoi(filepath.Base(process))
		must(t, err)
		must(t, syscall.Kill(id, syscall.SIGKILL))
		return
	}
	t.Fatalf("no process %s of pod %s on this machine: this test needs the local cluster, and root", program, pod)
}

// payments is the sample app with an init container that calls a neighbour, and with probes by name and by number.
func payments(name string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s, policy: %[1]s}}
    spec:
      automountServiceAccountToken: false
      securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      initContainers:
      - name: setup
        args: ["--url", "http://%[2]s:8080/healthz"]
%[3]s
      containers:
      - name: app
        ports: [{name: http, containerPort: 8080}]
        readinessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 1}
        livenessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, failureThreshold: 30}
%[4]s
---
`, name, map[bool]string{true: "127.0.0.1", false: "neighbour"}[name == "neighbour"], indented(container), indented(strings.Replace(container, "local/client", "local/idempotency-sampleapp", 1)))
}

// dead is a pod whose app does not listen.
func dead(policy string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: dead-%[1]s, labels: {app: dead-%[1]s, policy: %[1]s}}
spec:
  automountServiceAccountToken: false
  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: main
    args: [-sleep]
    ports: [{name: http, containerPort: 8080}]
    readinessProbe: {tcpSocket: {port: http}, periodSeconds: 1}
    lifecycle: {preStop: {httpGet: {path: /, port: 8080}}}
%[2]s
---
`, policy, container)
}

func service(name, app, target string, port int) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s}
spec:
  selector: {app: %s}
  ports: [{port: %d, targetPort: %s}]
---
`, name, app, port, target)
}

func indented(text string) string { return strings.ReplaceAll(text, "\n    ", "\n        ") }
