// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// request is a payment sent from the client pod to the Service, Times times at once.
type request struct {
	Key    string
	Client string
	Body   string
	Times  int
}

// reply is one line that the client prints.
type reply struct {
	Status int         `json:"status"`
	Header http.Header `json:"header"`
	Body   string      `json:"body"`
	Error  string      `json:"error"`
}

func send(t *testing.T, r request) []reply {
	t.Helper()
	replies, err := sendFrom(t.Context(), shared.cluster, r)
	must(t, err)
	return replies
}

func sendFrom(ctx context.Context, c *cluster, r request) ([]reply, error) {
	args := []string{"--method", "POST", "--url", "http://payments/payments", "--count", fmt.Sprint(r.Times), "--concurrency", fmt.Sprint(r.Times), "--body", r.Body,
		"--header", "Content-Type: application/json", "--header", "X-Client-Id: " + r.Client}
	if r.Key != "" {
		args = append(args, "--header", "Idempotency-Key: "+r.Key)
	}
	replies, err := c.fromPod(ctx, args...)
	if err == nil && len(replies) != r.Times {
		err = fmt.Errorf("%d replies to %d requests", len(replies), r.Times)
	}
	return replies, err
}

// fromPod runs the HTTP client in the client pod.
func (c *cluster) fromPod(ctx context.Context, args ...string) ([]reply, error) {
	return c.fromPodIn(ctx, shop, args...)
}

func (c *cluster) fromPodIn(ctx context.Context, namespace string, args ...string) ([]reply, error) {
	out, err := c.kubectl(ctx, append([]string{"-n", namespace, "exec", "deployment/client", "--", "/client"}, args...)...)
	if err != nil {
		return nil, err
	}
	var replies []reply
	for line := range strings.Lines(out) {
		var r reply
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return nil, fmt.Errorf("read the client's line %q: %w", line, err)
		}
		if r.Error != "" {
			return nil, fmt.Errorf("send from the client pod: %s", r.Error)
		}
		replies = append(replies, r)
	}
	return replies, nil
}

// executions asks the app how often it executed: for one key, or in all when key is empty.
func executions(t *testing.T, key string) int {
	t.Helper()
	replies, err := shared.cluster.fromPod(t.Context(), "--url", "http://payments/stats")
	must(t, err)
	var stats struct {
		Executions int            `json:"executions"`
		ByKey      map[string]int `json:"byKey"`
	}
	must(t, json.Unmarshal([]byte(replies[0].Body), &stats))
	if key == "" {
		return stats.Executions
	}
	return stats.ByKey[key]
}
