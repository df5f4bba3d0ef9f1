// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// sign is a signature as providers of webhooks make it: over the time of the delivery and the body.
func sign(secret string, delivery int, body string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "%d.%s", delivery, body)
	return fmt.Sprintf("t=%d,v1=%s", delivery, hex.EncodeToString(mac.Sum(nil)))
}

// TestSignedWebhookRedelivered: a provider delivers an event five times, each time signed anew, to two sidecars; it has one effect. A forged request
// with the same key neither has an effect nor keeps the true one from having its.
func TestSignedWebhookRedelivered(t *testing.T) {
	const event = `{"id":"evt_1","type":"charge.succeeded","amount":1200}`
	for _, row := range []struct {
		name   string
		source func(*proxyconfig.Route)
		fields []string
	}{
		{"by a header", func(r *proxyconfig.Route) { r.KeyHeader = "X-Delivery" }, []string{"X-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958"}},
		{"by the body", func(r *proxyconfig.Route) { r.KeySource, r.KeyHeader, r.KeyPointer = "JSONPointer", "", "/id" }, nil},
		{"by the event", func(r *proxyconfig.Route) { r.KeySource, r.KeyHeader = "CloudEvent", "" }, []string{"Ce-Source", "/charges", "Ce-Id", "evt_1"}},
		{"by nothing but what it says", func(r *proxyconfig.Route) { r.KeySource, r.KeyHeader = "Fingerprint", "" }, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			var effects atomic.Int64
			app := func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				var delivery int
				_, _ = fmt.Sscanf(r.Header.Get("Webhook-Signature"), "t=%d,", &delivery)
				if !hmac.Equal([]byte(sign("secret", delivery, string(body))), []byte(r.Header.Get("Webhook-Signature"))) {
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				fmt.Fprint(w, effects.Add(1))
			}
			w := newWorld(t, app, func(c *proxyconfig.Config) {
				c.Client = proxyconfig.Client{Type: "Shared"}
				row.source(&c.Routes[0])
			})
			proxies := []*instance{w.proxy("a"), w.proxy("b")}
			deliver := func(n int, secret, body string) reply {
				return proxies[n%2].send(t, body, append(row.fields, "Webhook-Signature", sign(secret, n, body))...)
			}
			if got := deliver(0, "guessed", event); got.status != 401 {
				t.Errorf("forged: %d %s", got.status, got.body)
			}
			for n := 1; n <= 5; n++ {
				if got := deliver(n, "secret", event); got.status != 200 || got.body != "1" || got.replayed() != (n > 1) {
					t.Errorf("delivery %d: %d %q replayed %v", n, got.status, got.body, got.replayed())
				}
			}
			if got := deliver(6, "guessed", strings.Replace(event, "1200", "9900", 1)); got.status != 422 && got.status != 401 {
				t.Errorf("forged afterwards: %d %s", got.status, got.body)
			}
			if n := effects.Load(); n != 1 {
				t.Errorf("%d effects", n)
			}
		})
	}
}

// send posts body with the header fields, names and values in turn.
func (p *instance) send(t *testing.T, body string, fields ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, p.url+"/payments", strings.NewReader(body))
	must(t, err)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(content), err}
}
