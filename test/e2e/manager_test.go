// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestMetricsNeedCredentials asks for the metrics as somebody without any: the API server's proxy hands none on.
func TestMetricsNeedCredentials(t *testing.T) {
	path := "/api/v1/namespaces/" + operatorNamespace + "/services/https:idempotency-operator-metrics:metrics/proxy/metrics"
	out, err := shared.cluster.kubectl(t.Context(), "get", "--raw", path)
	if err == nil || !strings.Contains(err.Error(), "provide credentials") {
		t.Fatalf("metrics answered %.200q, %v; want a refusal for lack of credentials", out, err)
	}
}

// TestOneManagerLeads looks for the lease, and for its holder among the managers.
func TestOneManagerLeads(t *testing.T) {
	ctx, c := t.Context(), shared.cluster
	eventually(t, 60*time.Second, func() error {
		holder, err := c.kubectl(ctx, "-n", operatorNamespace, "get", "lease", "idempotency-operator", "-o", "jsonpath={.spec.holderIdentity}")
		if err != nil {
			return err
		}
		pods, err := c.kubectl(ctx, "-n", operatorNamespace, "get", "pods", "-o", "jsonpath={.items[*].metadata.name}")
		if err != nil {
			return err
		}
		if leader, _, _ := strings.Cut(holder, "_"); leader == "" || !strings.Contains(pods, leader) {
			return fmt.Errorf("the lease is held by %q; the managers are %s", holder, pods)
		}
		return nil
	})
}
