// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	whole := Config{
		Namespace: "idempotency-system", SidecarImage: "proxy:1", MetricsAddress: ":8443", ProbeAddress: ":8081", DrainDelay: 10 * time.Second, AskSidecars: true, WebhookPort: 9443, LogLevel: slog.LevelInfo,
	}
	with := func(change func(*Config)) Config { c := whole; change(&c); return c }
	for _, tt := range []struct {
		reason string
		args   []string
		env    map[string]string
		want   Config
		fails  string
	}{
		{reason: "what is needed, by flags", args: []string{"--namespace=idempotency-system", "--sidecar-image=proxy:1"}, want: whole},
		{reason: "the namespace from the environment", args: []string{"--sidecar-image=proxy:1"}, env: map[string]string{"POD_NAMESPACE": "idempotency-system"}, want: whole},
		{
			reason: "everything", args: []string{"--namespace=a", "--sidecar-image=proxy:1", "--metrics-bind-address=0", "--health-probe-bind-address=:1", "--webhook-port=65535", "--webhook-cert-dir=/certs", "--leader-elect", "--drain-delay=1m", "--ask-sidecars=false", "--secret-sync-from=secrets", "--log-level=debug"},
			want: with(func(c *Config) {
				c.Namespace, c.MetricsAddress, c.ProbeAddress, c.WebhookPort, c.LeaderElection, c.LogLevel = "a", "0", ":1", 65535, true, slog.LevelDebug
				c.WebhookCertDir, c.SecretSyncFrom = "/certs", "secrets"
				c.DrainDelay, c.AskSidecars = time.Minute, false
			}),
		},
		{reason: "no namespace", args: []string{"--sidecar-image=proxy:1"}, fails: "POD_NAMESPACE"},
		{reason: "no image", args: []string{"--namespace=a"}, fails: "--sidecar-image"},
		{reason: "a negative delay", args: []string{"--namespace=a", "--sidecar-image=b", "--drain-delay=-1s"}, fails: "is negative"},
		{reason: "the operator's own Secrets", args: []string{"--namespace=a", "--sidecar-image=b", "--secret-sync-from=a"}, fails: "the operator's own namespace"},
		{reason: "port 0", args: []string{"--namespace=a", "--sidecar-image=b", "--webhook-port=0"}, fails: "not a port number"},
		{reason: "one port too many", args: []string{"--namespace=a", "--sidecar-image=b", "--webhook-port=65536"}, fails: "not a port number"},
		{reason: "another command", args: []string{"--namespace=a", "--sidecar-image=b", "serve"}, fails: `"serve"`},
		{reason: "another level", args: []string{"--log-level=loud"}, fails: "loud"},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			got, err := parse(tt.args, func(name string) string { return tt.env[name] })
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Fatalf("failed with %v, not about %q", err, tt.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("config differs (-want +got):\n%s", diff)
			}
		})
	}
}
