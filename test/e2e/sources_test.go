// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"
)

// TestKeySources sends the same thing five times to one route for each source of a key: one effect each.
func TestKeySources(t *testing.T) {
	const namespace = "idempotency-e2e-sources"
	ctx, c, db := t.Context(), shared.cluster, shared.database
	must(t, db.createDatabase(ctx, "sources"))
	must(t, c.namespace(ctx, namespace))
	t.Cleanup(func() { _, _ = c.kubectl(context.WithoutCancel(ctx), "delete", "namespace", namespace, "--wait=false") })
	must(t, c.secret(ctx, namespace, "payments-db", map[string]string{"dsn": db.dsn("sources", "idem_sidecar"), "admin-dsn": db.dsn("sources", "idem_operator")}))
	_, err := c.applyPolicy(ctx, namespace, policy, `
  selector: {matchLabels: {app: payments}}
  target: {port: http}
  store: {postgres: {dsnSecretRef: {name: payments-db, key: dsn}, adminDSNSecretRef: {name: payments-db, key: admin-dsn}}}
  client: {shared: {}}
  routes:
  - {name: delivery, methods: [POST], path: /payments/delivery, key: {source: {header: X-Delivery}}}
  - {name: event, methods: [POST], path: /payments/event, key: {source: {cloudEvent: {}}}}
  - {name: webhook, methods: [POST], path: /payments/webhook, key: {source: {jsonPointer: /event/id}}}
  - {name: click, methods: [POST], path: /payments/click, key: {source: {fingerprint: {}}}, window: 5m}
`)
	must(t, err)
	_, err = c.kubectl(ctx, "-n", namespace, "apply", "-f", "testdata/sampleapp.yaml", "-f", "testdata/client.yaml")
	must(t, err)
	must(t, c.ready(ctx, namespace, "payments"))
	must(t, c.ready(ctx, namespace, "client"))
	eventually(t, 90*time.Second, func() error { return c.condition(ctx, namespace, policy, "Ready", "True", "") })

	effects := func() int {
		t.Helper()
		replies, err := c.fromPodIn(ctx, namespace, "--url", "http://payments/stats")
		must(t, err)
		var stats struct{ Executions int }
		must(t, json.Unmarshal([]byte(replies[0].Body), &stats))
		return stats.Executions
	}
	send := func(route, body string, fields ...string) reply {
		t.Helper()
		args := []string{"--method", "POST", "--url", "http://payments/payments/" + route, "--count", "1", "--concurrency", "1", "--body", body}
		for _, field := range fields {
			args = append(args, "--header", field)
		}
		replies, err := c.fromPodIn(ctx, namespace, args...)
		must(t, err)
		return replies[0]
	}
	const plain = "Content-Type: application/json"
	for _, row := range []struct {
		name, route, body string
		fields            []string
		other             string // a body without a key, or another request
		status            int    // of other
	}{
		{"a header", "delivery", `{"amount":1,"currency":"EUR"}`, []string{plain, "X-Delivery: d1"}, `{"amount":2,"currency":"EUR"}`, http.StatusUnprocessableEntity},
		{"a binary event", "event", `{"amount":1,"currency":"EUR"}`, []string{plain, "Ce-Source: /shop", "Ce-Id: 1"}, `{"amount":2,"currency":"EUR"}`, http.StatusUnprocessableEntity},
		{"a structured event", "event", `{"source":"/shop","id":"2","amount":1,"currency":"EUR"}`, []string{"Content-Type: application/cloudevents+json"}, `{"source":"/shop"}`, http.StatusBadRequest},
		{"a place in the body", "webhook", `{"event":{"id":7},"amount":1,"currency":"EUR"}`, []string{plain}, `{"event":{"id":null}}`, http.StatusBadRequest},
		{"the request itself", "click", `{"amount":1,"currency":"EUR"}`, []string{plain}, "", 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			before := effects()
			for n := range 5 {
				r := send(row.route, row.body, append(row.fields, "Webhook-Signature: "+string(rune('a'+n)))...)
				if replayed := r.Header.Get("Idempotent-Replayed") == "true"; r.Status != http.StatusCreated || replayed != (n > 0) {
					t.Errorf("delivery %d: %d replayed %v %s", n, r.Status, replayed, r.Body)
				}
			}
			if row.other != "" {
				wantProblem(t, send(row.route, row.other, row.fields...), row.status)
			}
			if n := effects() - before; n != 1 {
				t.Errorf("%d effects", n)
			}
			say("key from %s: five deliveries, one effect", row.name)
		})
	}
}
