// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	shop   = "idempotency-e2e-shop"
	policy = "payments"
)

// TestDemo is the whole line on a real cluster: one policy, one duplicate, one effect. `make demo` runs it alone.
func TestDemo(t *testing.T) {
	ctx := t.Context()
	c, db := shared.cluster, shared.database
	must(t, db.createDatabase(ctx, "payments"))
	say("namespace %s: restricted Pod Security Standard, injection enabled", shop)
	must(t, c.namespace(ctx, shop))
	t.Cleanup(func() { _, _ = c.kubectl(context.WithoutCancel(ctx), "delete", "namespace", shop, "--wait=false") })

	say("Secret payments-db, config/samples/payments.yaml, the sample app and its Service")
	must(t, c.secret(ctx, shop, "payments-db", map[string]string{
		"dsn": db.dsn("payments", "idem_sidecar"), "admin-dsn": db.dsn("payments", "idem_operator"),
	}))
	_, err := c.kubectl(ctx, "-n", shop, "apply", "-f", root("config", "samples", "payments.yaml"))
	must(t, err)
	_, err = c.kubectl(ctx, "-n", shop, "apply", "-f", "testdata/sampleapp.yaml", "-f", "testdata/client.yaml")
	must(t, err)
	must(t, c.ready(ctx, shop, "payments"))
	must(t, c.ready(ctx, shop, "client"))

	t.Run("the pod carries the native sidecar and the Service leads to it", testInjected)
	t.Run("the policy becomes Ready", testReady)
	t.Run("twenty at once execute once", testConcurrent)
	t.Run("a retry is replayed to the byte", testReplay)
	t.Run("another payload is refused", testMismatch)
	t.Run("no key is refused", testNoKey)
	t.Run("another client has its own execution", testOtherClient)
	t.Run("a 503 gives the key back", testRelease)
	t.Run("partitions exist ahead", testPartitionsAhead)
	t.Run("an expired partition is dropped while traffic runs", testExpiredPartition)
	t.Run("midnight does not execute twice", testMidnight)
	t.Run("a pod that is deleted finishes its work", testDrain)
	t.Run("the store goes away and comes back", testStoreOutage)
}

func testInjected(t *testing.T) {
	ctx, c := t.Context(), shared.cluster
	pods, err := c.pods(ctx, shop, "payments")
	must(t, err)
	if len(pods) != 1 {
		t.Fatalf("%d pods of the sample app, not 1", len(pods))
	}
	first := pods[0].Spec.InitContainers[0]
	if first.Name != "idempotency-proxy" || first.RestartPolicy == nil || *first.RestartPolicy != "Always" {
		t.Fatalf("the first init container is %s with restart policy %v, not the native sidecar", first.Name, first.RestartPolicy)
	}
	// The Service targets the name http: it must lead to the sidecar's port, and to no other.
	slices, err := c.kubectl(ctx, "-n", shop, "get", "endpointslices", "-l", "kubernetes.io/service-name=payments", "-o", "jsonpath={.items[*].ports[*].port}")
	must(t, err)
	if want := fmt.Sprint(first.Ports[0].ContainerPort); strings.TrimSpace(slices) != want {
		t.Fatalf("the Service leads to port %q, not to the sidecar's %s", slices, want)
	}
	service, err := c.kubectl(ctx, "-n", shop, "get", "service", "payments", "-o", "jsonpath={.spec.ports[0].targetPort}")
	must(t, err)
	if service != "http" {
		t.Fatalf("the Service was changed: it targets %q", service)
	}
	say("pod %s: sidecar first, Service payments -> port %s", pods[0].Name, strings.TrimSpace(slices))
}

func testReady(t *testing.T) {
	ctx, c := t.Context(), shared.cluster
	_, err := c.kubectl(ctx, "-n", shop, "wait", "--for=condition=Ready", "idempotencypolicy/"+policy, "--timeout=90s")
	if err != nil {
		status, _ := c.kubectl(ctx, "-n", shop, "get", "idempotencypolicy", policy, "-o", "yaml")
		t.Fatalf("%v\n%s", err, status)
	}
	table, err := c.kubectl(ctx, "-n", shop, "get", "idempotencypolicies")
	must(t, err)
	say("kubectl get idempotencypolicies\n%s", table)
	p, err := c.policy(ctx, shop, policy)
	must(t, err)
	if p.Status.ObservedGeneration != p.Generation || p.Status.Pods == nil || p.Status.Pods.Summary != "1/1" ||
		p.Status.Store == nil || p.Status.Store.Type != "Postgres" || p.Status.Partitions == nil || p.Status.Partitions.RunwayUntil == nil {
		t.Fatalf("status is incomplete: %+v", p.Status)
	}
	fields := strings.Fields(strings.Split(table, "\n")[1])
	if diff := cmp.Diff([]string{"payments", "True", "Enforce", "Postgres", "24h", "1/1"}, fields[:6]); diff != "" {
		t.Fatalf("the table differs (-want +got):\n%s", diff)
	}
}

func testConcurrent(t *testing.T) {
	replies := send(t, request{Key: "order-1", Client: "alice", Body: `{"amount":1200,"currency":"EUR","simulate":{"sleepMillis":500}}`, Times: 20})
	count := map[int]int{}
	for _, r := range replies {
		count[r.Status]++
		if r.Status == http.StatusConflict && r.Header.Get("Retry-After") == "" {
			t.Errorf("a 409 has no Retry-After: %v", r.Header)
		}
		if r.Status == http.StatusCreated && r.Header.Get("Idempotent-Replayed") != "" {
			count[-1]++
		}
	}
	say("20 concurrent POSTs with one key: %v by status; the app executed %d time(s)", count, executions(t, "order-1"))
	if executions(t, "order-1") != 1 {
		t.Fatalf("executed %d times", executions(t, "order-1"))
	}
	if originals := count[201] - count[-1]; originals != 1 || count[201]+count[409] != 20 {
		t.Fatalf("answers by status %v: want one original 201, the rest 409 or replays", count)
	}
}

func testReplay(t *testing.T) {
	body := `{"amount":1200,"currency":"EUR"}`
	first := send(t, request{Key: "order-2", Client: "alice", Body: body, Times: 1})[0]
	again := send(t, request{Key: `"order-2"`, Client: "alice", Body: body, Times: 1})[0]
	if first.Status != http.StatusCreated || again.Status != http.StatusCreated {
		t.Fatalf("status %d, then %d", first.Status, again.Status)
	}
	if first.Body != again.Body {
		t.Fatalf("bodies differ:\n%q\n%q", first.Body, again.Body)
	}
	for _, name := range []string{"Content-Type", "Location", "Etag"} {
		if first.Header.Get(name) == "" || first.Header.Get(name) != again.Header.Get(name) {
			t.Errorf("%s is %q, then %q", name, first.Header.Get(name), again.Header.Get(name))
		}
	}
	if first.Header.Get("Idempotent-Replayed") != "" || again.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("Idempotent-Replayed is %q, then %q", first.Header.Get("Idempotent-Replayed"), again.Header.Get("Idempotent-Replayed"))
	}
	if again.Header.Get("Set-Cookie") != "" {
		t.Errorf("the replay sets a cookie")
	}
	if n := executions(t, "order-2"); n != 1 {
		t.Fatalf("executed %d times", n)
	}
	say("retry: %d %s Idempotent-Replayed: %s, same bytes, executed once", again.Status, again.Header.Get("Location"), again.Header.Get("Idempotent-Replayed"))
}

func testMismatch(t *testing.T) {
	send(t, request{Key: "order-3", Client: "alice", Body: `{"amount":1,"currency":"EUR"}`, Times: 1})
	r := send(t, request{Key: "order-3", Client: "alice", Body: `{"amount":2,"currency":"EUR"}`, Times: 1})[0]
	wantProblem(t, r, http.StatusUnprocessableEntity)
	if n := executions(t, "order-3"); n != 1 {
		t.Fatalf("executed %d times", n)
	}
	say("another payload with that key: %d %s", r.Status, r.Header.Get("Content-Type"))
}

func testNoKey(t *testing.T) {
	before := executions(t, "")
	r := send(t, request{Client: "alice", Body: `{"amount":1,"currency":"EUR"}`, Times: 1})[0]
	wantProblem(t, r, http.StatusBadRequest)
	if after := executions(t, ""); after != before {
		t.Fatalf("executed: %d, then %d", before, after)
	}
	say("no key: %d %s", r.Status, r.Header.Get("Content-Type"))
}

func testOtherClient(t *testing.T) {
	body := `{"amount":77,"currency":"EUR"}`
	alice := send(t, request{Key: "order-4", Client: "alice", Body: body, Times: 1})[0]
	bob := send(t, request{Key: "order-4", Client: "bob", Body: body, Times: 1})[0]
	if alice.Status != http.StatusCreated || bob.Status != http.StatusCreated || alice.Body == bob.Body {
		t.Fatalf("alice %d %q, bob %d %q", alice.Status, alice.Body, bob.Status, bob.Body)
	}
	if n := executions(t, "order-4"); n != 2 {
		t.Fatalf("executed %d times, not once for each", n)
	}
	say("another client, same key: its own execution")
}

func testRelease(t *testing.T) {
	body := `{"amount":5,"currency":"EUR","simulate":{"status":503,"times":1}}`
	first := send(t, request{Key: "order-5", Client: "alice", Body: body, Times: 1})[0]
	second := send(t, request{Key: "order-5", Client: "alice", Body: body, Times: 1})[0]
	if first.Status != http.StatusServiceUnavailable || second.Status != http.StatusCreated {
		t.Fatalf("status %d, then %d", first.Status, second.Status)
	}
	if n := executions(t, "order-5"); n != 2 {
		t.Fatalf("executed %d times", n)
	}
	say("the app's own 503 gave the key back; the retry executed: %d", second.Status)
}

// wantProblem checks an RFC 9457 answer.
func wantProblem(t *testing.T, r reply, status int) {
	t.Helper()
	var problem struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
	}
	if r.Status != status || r.Header.Get("Content-Type") != "application/problem+json" {
		t.Fatalf("got %d %s %q, want a %d problem", r.Status, r.Header.Get("Content-Type"), r.Body, status)
	}
	if err := json.Unmarshal([]byte(r.Body), &problem); err != nil || problem.Status != status || problem.Type == "" || problem.Title == "" {
		t.Fatalf("problem document %q: %v", r.Body, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
