// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// spec is a policy's spec that works; each case below spoils one line of it.
const spec = `
  selector: {matchLabels: {app: refused}}
  target: {port: http}
  store: {postgres: {dsnSecretRef: {name: absent, key: dsn}}}
  retention: {window: 24h}
  client: {header: X-Client-Id}
  routes:
  - {name: pay, methods: [POST], path: /pay}
`

// TestRefusedPolicies applies policies that cannot work. Each is refused at admission with what to write instead.
func TestRefusedPolicies(t *testing.T) {
	ctx, c := t.Context(), shared.cluster
	namespace := "idempotency-e2e-refused"
	must(t, c.namespace(ctx, namespace))
	t.Cleanup(func() { _, _ = c.kubectl(context.WithoutCancel(ctx), "delete", "namespace", namespace, "--wait=false") })

	for _, row := range []struct{ name, line, instead, says string }{
		{"no selector", "selector: {matchLabels: {app: refused}}", "", "spec.selector: Required"},
		{"empty selector", "{matchLabels: {app: refused}}", "{}", "name at least one label"},
		{"two stores", "{name: absent, key: dsn}}}", "{name: absent, key: dsn}}, redis: {dsnSecretRef: {name: absent}}}", "set exactly one of postgres and redis"},
		{"window of nothing", "window: 24h", "window: 0s", "between 1m and 366d"},
		{"negative window", "window: 24h", "window: -1h", "between 1m and 366d"},
		{"window over the longest", "window: 24h", "window: 2562048h", "between 1m and 366d"},
		{"two clients", "{header: X-Client-Id}", "{header: X-Client-Id, shared: {}}", "set exactly one of"},
		{"numbered port with NamedPort", "port: http", "port: 8080", "name"},
		{"overlapping routes", "path: /pay}", "path: '/{a}/x'}\n  - {name: other, methods: [POST], path: '/x/{b}'}", "other"},
		{"broken key pattern", "path: /pay}", "path: /pay, key: {pattern: '('}}", "pattern"},
	} {
		t.Run(row.name, func(t *testing.T) {
			spoiled := strings.Replace(spec, row.line, row.instead, 1)
			if spoiled == spec {
				t.Fatalf("the case changes nothing")
			}
			_, err := c.applyPolicy(ctx, namespace, "refused", spoiled)
			if err == nil || !strings.Contains(err.Error(), row.says) {
				t.Fatalf("applied with the answer %v; want a refusal that says %q", err, row.says)
			}
		})
	}

	t.Run("a Secret that is missing is a condition, and its arrival heals it", func(t *testing.T) {
		_, err := c.applyPolicy(ctx, namespace, "waiting", spec)
		must(t, err)
		eventually(t, 30*time.Second, func() error {
			return c.condition(ctx, namespace, "waiting", "Accepted", "False", "SecretNotFound")
		})
		must(t, shared.database.createDatabase(ctx, "waiting"))
		must(t, c.secret(ctx, namespace, "absent", map[string]string{"dsn": shared.database.dsn("waiting", "idem_operator")}))
		eventually(t, 60*time.Second, func() error { return c.condition(ctx, namespace, "waiting", "Ready", "True", "") })
	})
}

func (c *cluster) applyPolicy(ctx context.Context, namespace, name, spec string) (string, error) {
	manifest := fmt.Sprintf("apiVersion: idempotency.dev/v1alpha1\nkind: IdempotencyPolicy\nmetadata: {name: %s, namespace: %s}\nspec:%s", name, namespace, spec)
	return c.kubectlWith(ctx, manifest, "apply", "-f", "-")
}
