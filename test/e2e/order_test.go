// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const order = "idempotency-e2e-order"

// TestOrderOfLife is the sidecar's life beside the app's: before it, through crashes, and through changes of the operator.
func TestOrderOfLife(t *testing.T) {
	ctx, c, db := t.Context(), shared.cluster, shared.database
	must(t, db.createDatabase(ctx, "order"))
	must(t, c.namespace(ctx, order))
	t.Cleanup(func() { _, _ = c.kubectl(context.WithoutCancel(ctx), "delete", "namespace", order, "--wait=false") })
	must(t, c.secret(ctx, order, "payments-db", map[string]string{"dsn": db.dsn("order", "idem_sidecar"), "admin-dsn": db.dsn("order", "idem_operator")}))
	_, err := c.applyPolicy(ctx, order, "order", `
  selector: {matchLabels: {policy: order}}
  target: {port: http}
  store: {postgres: {dsnSecretRef: {name: payments-db, key: dsn}, adminDSNSecretRef: {name: payments-db, key: admin-dsn}}}
  client: {shared: {}}
  routes:
  - {name: pay, methods: [POST], path: /payments}
`)
	must(t, err)
	eventually(t, 90*time.Second, func() error { return c.condition(ctx, order, "order", "StoreHealthy", "True", "") })
	// Its init container asks the sidecar, which is in the pod already.
	app := strings.Replace(payments("order"), "http://neighbour:8080/healthz", "http://127.0.0.1:15601/readyz", 1)
	_, err = c.kubectlWith(ctx, app+service("order", "order", "http", 80), "-n", order, "apply", "-f", "-")
	must(t, err)
	_, err = c.kubectl(ctx, "-n", order, "apply", "-f", "testdata/client.yaml")
	must(t, err)
	must(t, c.ready(ctx, order, "client"))
	must(t, c.ready(ctx, order, "order"))
	t.Run("the sidecar serves before anything else starts", testSidecarFirst)
	t.Run("what is recorded on the pod's disk outlives the sidecar's crashes", testCrashLoop)
	t.Run("another version of the operator changes no running pod", testVersions)
}

func thePod(t *testing.T) *corev1.Pod {
	t.Helper()
	pods, err := shared.cluster.pods(t.Context(), order, "order")
	must(t, err)
	if len(pods) != 1 {
		t.Fatalf("%d pods", len(pods))
	}
	return &pods[0]
}

func testSidecarFirst(t *testing.T) {
	pod := thePod(t)
	log, err := shared.cluster.kubectl(t.Context(), "-n", order, "logs", pod.Name, "-c", "setup")
	must(t, err)
	if !strings.Contains(log, `"status":200`) {
		t.Fatalf("the first init container of the pod's own found the sidecar not serving: %s", log)
	}
	sidecar, setup, app := pod.Status.InitContainerStatuses[0], pod.Status.InitContainerStatuses[1], pod.Status.ContainerStatuses[0]
	var times []metav1.Time
	for _, s := range []corev1.ContainerStatus{sidecar, app} {
		if s.State.Running == nil {
			t.Fatalf("%s does not run", s.Name)
		}
		times = append(times, s.State.Running.StartedAt)
	}
	if setup.State.Terminated == nil || setup.State.Terminated.StartedAt.Before(&times[0]) || times[1].Before(&setup.State.Terminated.FinishedAt) {
		t.Fatalf("the sidecar started at %s, the init container ran %+v, the app started at %s", times[0], setup.State, times[1])
	}
}

// pay sends a payment through the Service.
func pay(ctx context.Context, key, body string) (reply, error) {
	replies, err := shared.cluster.fromPodIn(ctx, order, "--method", "POST", "--url", "http://order/payments", "--body", body,
		"--header", "Content-Type: application/json", "--header", "Idempotency-Key: "+key)
	if err != nil {
		return reply{}, err
	}
	return replies[0], nil
}

func executed(ctx context.Context, key string) (int, error) {
	replies, err := shared.cluster.fromPodIn(ctx, order, "--url", "http://order/stats")
	if err != nil {
		return 0, err
	}
	var stats struct {
		ByKey map[string]int `json:"byKey"`
	}
	err = json.Unmarshal([]byte(replies[0].Body), &stats)
	return stats.ByKey[key], err
}

// testCrashLoop stops the database while a payment is made: the caller gets the true answer, whose record is on the pod's disk only. Then the
// sidecar is killed, and killed again. When the database is back the record is there, and a retry is answered by it.
func testCrashLoop(t *testing.T) {
	ctx, db := t.Context(), shared.database
	pod := thePod(t)
	body := `{"amount":7,"currency":"EUR","simulate":{"sleepMillis":6000}}`
	type outcome struct {
		reply reply
		err   error
	}
	answered := make(chan outcome, 1)
	go func() {
		r, err := pay(ctx, "crash", body)
		answered <- outcome{r, err}
	}()
	eventually(t, 30*time.Second, func() error {
		n, err := executed(ctx, "crash")
		if err == nil && n == 0 {
			err = errors.New("the app is not at work yet")
		}
		return err
	})
	db.pause()
	started := false
	t.Cleanup(func() {
		if !started {
			must(t, db.start(context.WithoutCancel(ctx)))
		}
	})
	first := <-answered
	must(t, first.err)
	if first.reply.Status != http.StatusCreated {
		t.Fatalf("while the store was away the caller of a payment that was made got %d %q", first.reply.Status, first.reply.Body)
	}
	for restarts := int32(1); restarts <= 2; restarts++ {
		kill(t, pod.Name, "/proxy")
		eventually(t, 90*time.Second, func() error {
			if s := thePod(t).Status.InitContainerStatuses[0]; s.RestartCount < restarts || s.State.Running == nil {
				return fmt.Errorf("the sidecar has restarted %d times: %+v", s.RestartCount, s.State)
			}
			return nil
		})
	}
	must(t, db.start(ctx))
	started = true
	eventually(t, 90*time.Second, func() error {
		again, err := pay(ctx, "crash", body)
		if err != nil {
			return err
		}
		if again.Status == http.StatusCreated && (again.Body != first.reply.Body || again.Header.Get("Idempotent-Replayed") != "true") {
			t.Fatalf("the retry got %q after %q: executed twice", again.Body, first.reply.Body)
		}
		if again.Status != http.StatusCreated {
			return fmt.Errorf("the retry got %d %q", again.Status, again.Body)
		}
		return nil
	})
	if n, err := executed(ctx, "crash"); err != nil || n != 1 {
		t.Fatalf("executed %d times, %v", n, err)
	}
	say("the sidecar was killed twice with a record on its disk only: it reached the store, the retry was replayed")
}

// testVersions gives the operator another default image for sidecars, as a new version has, and then the old one again.
func testVersions(t *testing.T) {
	ctx, c := t.Context(), shared.cluster
	before := thePod(t)
	was := setSidecarImage(t, "docker.io/local/idempotency-proxy:next")
	back := false
	t.Cleanup(func() {
		if !back {
			setSidecarImage(t, was)
		}
	})
	outdated := func(want int32) {
		t.Helper()
		eventually(t, 90*time.Second, func() error {
			p, err := c.policy(ctx, order, "order")
			if err == nil && (p.Status.Pods == nil || p.Status.Pods.Outdated != want || p.Status.Pods.Injected != 1) {
				err = fmt.Errorf("the status counts %+v, want %d outdated", p.Status.Pods, want)
			}
			return err
		})
		after := thePod(t)
		if diff := cmp.Diff(before.Spec, after.Spec); diff != "" || after.UID != before.UID || after.Status.InitContainerStatuses[0].RestartCount != before.Status.InitContainerStatuses[0].RestartCount {
			t.Fatalf("pod %s, then %s; its spec (-before +after):\n%s", before.Name, after.Name, diff)
		}
	}
	outdated(1)
	must(t, c.condition(ctx, order, "order", "Injected", "False", "RolloutPending"))
	cmd := exec.CommandContext(ctx, "go", "run", "./cmd/kubectl-idempotency", "status", "-n", order, "--kubeconfig", c.kubeconfig)
	cmd.Dir = root()
	table, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(table), "1 outdated") {
		t.Fatalf("kubectl idempotency status: %v\n%s", err, table)
	}
	say("a new version of the operator: 1 pod outdated, none changed\n%s", table)
	setSidecarImage(t, was)
	back = true
	outdated(0)
	must(t, c.condition(ctx, order, "order", "Injected", "True", "Injected"))
	say("the old version again: 0 outdated, the same pod")
}

// setSidecarImage rolls the operator out with another default image, and returns the one before.
func setSidecarImage(t *testing.T, image string) (was string) {
	t.Helper()
	ctx, c := context.WithoutCancel(t.Context()), shared.cluster
	deployment := &appsv1.Deployment{}
	must(t, c.client.Get(ctx, client.ObjectKey{Namespace: operatorNamespace, Name: "idempotency-operator"}, deployment))
	args := deployment.Spec.Template.Spec.Containers[0].Args
	for i, arg := range args {
		if value, found := strings.CutPrefix(arg, "--sidecar-image="); found {
			was, args[i] = value, "--sidecar-image="+image
		}
	}
	if was == "" {
		t.Fatalf("the operator has the arguments %q", args)
	}
	must(t, c.client.Update(ctx, deployment))
	_, err := c.kubectl(ctx, "-n", operatorNamespace, "rollout", "status", "deployment", "--timeout=180s")
	must(t, err)
	return was
}
