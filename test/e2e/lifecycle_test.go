// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// TestLifecycle is what the sidecar does to the life of other people's pods: nothing.
func TestLifecycle(t *testing.T) {
	ctx, c, db := t.Context(), shared.cluster, shared.database
	namespace := "idempotency-e2e-life"
	must(t, db.createDatabase(ctx, "life"))
	must(t, c.namespace(ctx, namespace))
	t.Cleanup(func() { _, _ = c.kubectl(context.WithoutCancel(ctx), "delete", "namespace", namespace, "--wait=false") })
	must(t, c.secret(ctx, namespace, "payments-db", map[string]string{"dsn": db.dsn("life", "idem_sidecar"), "admin-dsn": db.dsn("life", "idem_operator")}))
	_, err := c.applyPolicy(ctx, namespace, "life", `
  selector: {matchLabels: {policy: life}}
  target: {port: http}
  store: {postgres: {dsnSecretRef: {name: payments-db, key: dsn}, adminDSNSecretRef: {name: payments-db, key: admin-dsn}}}
  client: {shared: {}}
  routes:
  - {name: pay, methods: [POST], path: /payments}
`)
	must(t, err)
	eventually(t, 60*time.Second, func() error { return c.condition(ctx, namespace, "life", "StoreHealthy", "True", "") })

	t.Run("a Job completes, and one that fails is Failed", func(t *testing.T) {
		for name, exit := range map[string]string{"succeeds": "Complete", "fails": "Failed"} {
			args := `["-url", "http://127.0.0.1:1/"]` // prints the refused connection and exits 0
			if exit == "Failed" {
				args = `["-count", "0"]` // exits 1
			}
			_, err := c.kubectlWith(ctx, job(namespace, name, args), "apply", "-f", "-")
			must(t, err)
			eventually(t, 90*time.Second, func() error {
				have, err := c.kubectl(ctx, "-n", namespace, "get", "job", name, "-o", `jsonpath={.status.conditions[?(@.status=="True")].type}`)
				if err == nil && !strings.Contains(have, exit) {
					err = fmt.Errorf("job %s has the conditions %q, not %s", name, have, exit)
				}
				return err
			})
			pods, err := c.kubectl(ctx, "-n", namespace, "get", "pods", "-l", "job-name="+name, "-o", "jsonpath={.items[*].spec.initContainers[*].name}")
			must(t, err)
			if pods != "idempotency-proxy" {
				t.Fatalf("the job's pod has the init containers %q: it ran without its sidecar", pods)
			}
		}
	})

	t.Run("an enforced pod that cannot be enforced is refused, another one runs and is told", func(t *testing.T) {
		_, err := c.kubectlWith(ctx, pod(namespace, "other-port", "web", "policy: life, idempotency.dev/enforce: 'true'"), "apply", "-f", "-")
		if err == nil || !strings.Contains(err.Error(), "http") {
			t.Fatalf("applied with %v; want a refusal that names the port", err)
		}
		_, err = c.kubectlWith(ctx, pod(namespace, "other-port", "web", "policy: life"), "apply", "-f", "-")
		must(t, err)
		eventually(t, 60*time.Second, func() error {
			return c.condition(ctx, namespace, "life", "Injected", "False", "")
		})
	})

	t.Run("no call to a webhook fails while the operator is rolled out", func(t *testing.T) { testOperatorRollout(t, namespace) })
	t.Run("without the operator, pods are created, but for enforced ones", func(t *testing.T) { testOperatorAway(t, namespace) })
}

// testOperatorRollout replaces every manager while pods are created, without a pause: each of them must get its sidecar.
func testOperatorRollout(t *testing.T, namespace string) {
	ctx, c := t.Context(), shared.cluster
	_, err := c.kubectl(ctx, "-n", operatorNamespace, "rollout", "restart", "deployment")
	must(t, err)
	rolledOut := make(chan error, 1)
	go func() {
		_, err := c.kubectl(ctx, "-n", operatorNamespace, "rollout", "status", "deployment", "--timeout=120s")
		for err == nil { // until the last of the old ones is gone
			var pods string
			pods, err = c.kubectl(ctx, "-n", operatorNamespace, "get", "pods", "-o", `jsonpath={.items[?(@.metadata.deletionTimestamp)].metadata.name}`)
			if err == nil && pods == "" {
				break
			}
		}
		rolledOut <- err
	}()
	template := &corev1.Pod{}
	must(t, yaml.Unmarshal([]byte(pod(namespace, "rollout", "http", "policy: life")), template))
	for created := 1; ; created++ {
		fresh := template.DeepCopy()
		must(t, c.client.Create(ctx, fresh, client.DryRunAll))
		if len(fresh.Spec.InitContainers) != 1 || fresh.Spec.InitContainers[0].Name != "idempotency-proxy" {
			t.Fatalf("pod %d came without its sidecar", created)
		}
		select {
		case err := <-rolledOut:
			must(t, err)
			say("the operator was rolled out while %d pods were created: none without its sidecar", created)
			return
		default:
		}
	}
}

func testOperatorAway(t *testing.T, namespace string) {
	ctx, c := t.Context(), shared.cluster
	replicas, err := c.kubectl(ctx, "-n", operatorNamespace, "get", "deployments", "-o", "jsonpath={.items[0].metadata.name} {.items[0].spec.replicas}")
	must(t, err)
	name, count, _ := strings.Cut(replicas, " ")
	scale := func(ctx context.Context, to string) error {
		_, err := c.kubectl(ctx, "-n", operatorNamespace, "scale", "deployment", name, "--replicas="+to)
		return err
	}
	must(t, scale(ctx, "0"))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		must(t, scale(ctx, count))
		_, err := c.kubectl(ctx, "-n", operatorNamespace, "rollout", "status", "deployment", "--timeout=120s")
		must(t, err)
	})
	eventually(t, 60*time.Second, func() error {
		pods, err := c.kubectl(ctx, "-n", operatorNamespace, "get", "pods", "-o", "name")
		if err == nil && strings.TrimSpace(pods) != "" {
			err = errors.New("the operator still runs: " + pods)
		}
		return err
	})
	for _, row := range []struct{ name, labels string }{
		{"plain", "app: plain"},
		{"selected", "policy: life"},
	} {
		_, err := c.kubectlWith(ctx, pod(namespace, row.name, "http", row.labels), "apply", "-f", "-")
		must(t, err)
	}
	if _, err := c.kubectlWith(ctx, pod(namespace, "enforced", "http", "policy: life, idempotency.dev/enforce: 'true'"), "apply", "-f", "-"); err == nil {
		t.Fatal("an enforced pod was created without its sidecar")
	}
	must(t, scale(ctx, count))
	_, err = c.kubectl(ctx, "-n", operatorNamespace, "rollout", "status", "deployment", "--timeout=120s")
	must(t, err)
	eventually(t, 30*time.Second, func() error {
		p, err := c.policy(ctx, namespace, "life")
		if err != nil {
			return err
		}
		if p.Status.Pods == nil || p.Status.Pods.Matched-p.Status.Pods.Injected < 2 {
			return fmt.Errorf("status counts %+v: the pods that came without their sidecar are not reported", p.Status.Pods)
		}
		return nil
	})
}

const container = `
    image: docker.io/local/client:dev
    imagePullPolicy: IfNotPresent
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
`

func job(namespace, name, args string) string {
	return fmt.Sprintf(`
apiVersion: batch/v1
kind: Job
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  backoffLimit: 0
  template:
    metadata: {labels: {policy: life}}
    spec:
      restartPolicy: Never
      automountServiceAccountToken: false
      securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: main
        ports: [{name: http, containerPort: 8080}]
        args: %[3]s
%[4]s`, namespace, name, args, strings.ReplaceAll(container, "\n    ", "\n        "))
}

func pod(namespace, name, port, labels string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[2]s, namespace: %[1]s, labels: {%[4]s}}
spec:
  automountServiceAccountToken: false
  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: main
    ports: [{name: %[3]s, containerPort: 8080}]
    args: [-sleep]
%[5]s`, namespace, name, port, labels, container)
}
