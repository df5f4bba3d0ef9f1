// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/idempotency-dev/operator/internal/proxyconfig"
	"github.com/idempotency-dev/operator/test/sampleapp/payments"
)

// sampleConfig is the compiled sample policy, changed.
func sampleConfig(t *testing.T, change func(*proxyconfig.Config)) proxyconfig.Config {
	t.Helper()
	compiled := execute(t, "", "compile", "-f", samplePath)
	config, err := proxyconfig.Decode([]byte(compiled.out))
	if err != nil {
		t.Fatal(err)
	}
	change(&config)
	return config
}

// TestDemoSeesBrokenPromises runs the demo without a sidecar: every promise but the first payment's is broken, and it has to say so.
func TestDemoSeesBrokenPromises(t *testing.T) {
	app := payments.New()
	server := httptest.NewServer(app)
	defer server.Close()
	var out bytes.Buffer
	d, err := newDemo(sampleConfig(t, func(*proxyconfig.Config) {}), app, &out)
	if err != nil {
		t.Fatal(err)
	}
	err = d.run(t.Context(), server.URL)
	if err == nil {
		t.Fatalf("no error:\n%s", &out)
	}
	for _, says := range []string{
		"the same payment again: executed once, want not",
		"another amount with that key: status 201, want 422",
		"no key: status 201, want 400",
		"no client: status 201, want 401",
		"20 at once with one new key: executed 20 times, want once",
	} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("error does not say %q:\n%v", says, err)
		}
	}
	if !strings.Contains(out.String(), "NO: ") {
		t.Errorf("the table does not show it:\n%s", &out)
	}
}

func TestStepCheck(t *testing.T) {
	header := func(pairs ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(pairs); i += 2 {
			h.Set(pairs[i], pairs[i+1])
		}
		return h
	}
	first := reply{201, header("Location", "/payments/1", "Set-Cookie", "a=b"), "made"}
	replay := step{status: 201, replays: true}
	tests := []struct {
		reason     string
		step       step
		got        reply
		executions int
		says       string
	}{
		{"a replay", replay, reply{201, header("Location", "/payments/1", "Idempotent-Replayed", "true"), "made"}, 0, ""},
		{"a replay that executed", replay, reply{201, header("Location", "/payments/1", "Idempotent-Replayed", "true"), "made"}, 1, "executed once"},
		{"a replay that does not say so", replay, reply{201, header("Location", "/payments/1"), "made"}, 0, "replayed: false"},
		{"another body", replay, reply{201, header("Location", "/payments/1", "Idempotent-Replayed", "true"), "other"}, 0, "body differs"},
		{"another place", replay, reply{201, header("Location", "/payments/2", "Idempotent-Replayed", "true"), "made"}, 0, "Location"},
		{"somebody's session", replay, reply{201, header("Location", "/payments/1", "Set-Cookie", "a=b", "Idempotent-Replayed", "true"), "made"}, 0, "cookie"},
		{"a refusal that is marked as a replay", step{status: 422}, reply{422, header("Idempotent-Replayed", "true"), ""}, 0, "replayed: true"},
	}
	for _, tt := range tests {
		err := tt.step.check(first, tt.got, tt.executions)
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: error is %v, want %q", tt.reason, err, tt.says)
		}
	}
}

func TestNewDemoRefuses(t *testing.T) {
	tests := []struct {
		reason string
		change func(*proxyconfig.Config)
	}{
		{"another path", func(c *proxyconfig.Config) { c.Routes[0].Path = "/orders" }},
		{"another method", func(c *proxyconfig.Config) { c.Routes[0].Methods = []string{"PUT"} }},
		{"a key that may be missing", func(c *proxyconfig.Config) { c.Routes[0].KeyRequired = false }},
		{"clients without a header", func(c *proxyconfig.Config) { c.Client = proxyconfig.Client{Type: "Shared"} }},
		{"a policy that only looks on", func(c *proxyconfig.Config) { c.Mode = "Audit" }},
	}
	for _, tt := range tests {
		if _, err := newDemo(sampleConfig(t, tt.change), nil, nil); err == nil {
			t.Errorf("%s: no error", tt.reason)
		}
	}
}
