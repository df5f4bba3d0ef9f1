// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/idempotency-dev/operator/internal/localredis"
)

// redisStore stands for the sample's PostgreSQL.
const redisStore = `{"spec":{"store":{"postgres":null,"redis":{"dsnSecretRef":{"name":"payments-redis"}}},"retention":{"deletionPolicy":"Delete"}}}`

// TestRedis is the slice with a policy whose entries are in Redis.
func TestRedis(t *testing.T) {
	const namespace = "idempotency-e2e-redis"
	ctx, c := t.Context(), shared.cluster
	server, err := localredis.Start(ctx, localredis.Options{Listen: shared.database.host})
	must(t, err)
	t.Cleanup(server.Stop)
	must(t, c.namespace(ctx, namespace))
	t.Cleanup(func() { _, _ = c.kubectl(context.WithoutCancel(ctx), "delete", "namespace", namespace, "--wait=false") })
	must(t, c.secret(ctx, namespace, "payments-redis", map[string]string{"dsn": "redis://" + server.Addr()}))

	// The sample with the other store: a policy has one, so that it is patched before it is applied.
	patched, err := c.kubectl(ctx, "patch", "--local", "--type=merge", "-f", root("config", "samples", "payments.yaml"), "-p", redisStore, "-o", "yaml")
	must(t, err)
	file := t.TempDir() + "/policy.yaml"
	must(t, os.WriteFile(file, []byte(patched), 0o600))
	_, err = c.kubectl(ctx, "-n", namespace, "apply", "-f", file)
	must(t, err)
	_, err = c.kubectl(ctx, "-n", namespace, "apply", "-f", "testdata/sampleapp.yaml", "-f", "testdata/client.yaml")
	must(t, err)
	must(t, c.ready(ctx, namespace, "payments"))
	must(t, c.ready(ctx, namespace, "client"))
	if _, err := c.kubectl(ctx, "-n", namespace, "wait", "--for=condition=Ready", "idempotencypolicy/"+policy, "--timeout=90s"); err != nil {
		status, _ := c.kubectl(ctx, "-n", namespace, "get", "idempotencypolicy", policy, "-o", "yaml")
		t.Fatalf("%v\n%s", err, status)
	}
	reason, err := c.kubectl(ctx, "-n", namespace, "get", "idempotencypolicy", policy, "-o", `jsonpath={.status.store.type} {.status.conditions[?(@.type=="PartitionsReady")].reason}`)
	must(t, err)
	if strings.TrimSpace(reason) != "Redis NativeExpiry" {
		t.Fatalf("store and reason of PartitionsReady: %q", reason)
	}

	post := func(key, body string, times string) []reply {
		t.Helper()
		replies, err := c.fromPodIn(ctx, namespace, "--method", "POST", "--url", "http://payments/payments", "--count", times, "--concurrency", times, "--body", body,
			"--header", "Content-Type: application/json", "--header", "X-Client-Id: alice", "--header", "Idempotency-Key: "+key)
		must(t, err)
		return replies
	}
	originals := 0
	for _, r := range post("order-1", `{"amount":1200,"currency":"EUR","simulate":{"sleepMillis":500}}`, "20") {
		if r.Status == http.StatusCreated && r.Header.Get("Idempotent-Replayed") == "" {
			originals++
		} else if r.Status != http.StatusCreated && r.Status != http.StatusConflict {
			t.Errorf("status %d", r.Status)
		}
	}
	if originals != 1 {
		t.Errorf("%d originals of 20 at once", originals)
	}
	if r := post("order-1", `{"amount":1200,"currency":"EUR","simulate":{"sleepMillis":500}}`, "1")[0]; r.Status != http.StatusCreated || r.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("retry: %d %v", r.Status, r.Header)
	}
	wantProblem(t, post("order-1", `{"amount":1}`, "1")[0], http.StatusUnprocessableEntity)
	replies, err := c.fromPodIn(ctx, namespace, "--url", "http://payments/stats")
	must(t, err)
	var stats struct{ Executions int }
	must(t, json.Unmarshal([]byte(replies[0].Body), &stats))
	if stats.Executions != 1 {
		t.Errorf("the app executed %d times", stats.Executions)
	}

	say("Redis goes away and comes back")
	server.Kill()
	eventually(t, 30*time.Second, func() error {
		if r := post("order-2", `{"amount":2,"currency":"EUR"}`, "1")[0]; r.Status != http.StatusServiceUnavailable {
			return errors.New("answered without a store")
		}
		return nil
	})
	must(t, server.Restart(ctx, nil))
	eventually(t, 30*time.Second, func() error {
		if r := post("order-2", `{"amount":2,"currency":"EUR"}`, "1")[0]; r.Status != http.StatusCreated {
			return fmt.Errorf("not yet executed: %d %s", r.Status, r.Body)
		}
		return nil
	})
	_, err = c.kubectl(ctx, "-n", namespace, "delete", "idempotencypolicy", policy, "--timeout=60s")
	must(t, err)
}
