// SPDX-License-Identifier: Apache-2.0

package proxyconfig

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden file")

// full has every field set.
func full() Config {
	return Config{
		Version: Version, Policy: Policy{Namespace: "shop", Name: "payments", Generation: 3}, Keyspace: "shop.payments", Mode: "Enforce",
		Store:  Store{Type: "Postgres", Schema: "idempotency", OnUnavailable: "Reject"},
		Client: Client{Type: "Header", Header: "X-Client-Id", TrustedCIDRs: []string{"10.0.0.0/8", "fd00::/8"}},
		Routes: []Route{{
			Name: "create-payment", Methods: []string{"POST", "PUT"}, Path: "/payments/{id}", KeyRequired: true, KeyHeader: "Idempotency-Key", KeyMaxLength: 255,
			KeyPattern: "[<&>a-z]+", WindowMillis: 86_400_000, CanonicalJSON: true, FingerprintHeaders: []string{"X-Tenant"}, FingerprintIgnore: []string{"/sentAt"},
			InFlight: "Wait", MaxWaitMillis: 2000, OnUnknownOutcome: "Reconcile", ReconcilePath: "/reconcile", ResponseMaxBytes: 1 << 20,
			ResponseHeaders: []string{"X-Payment"}, StatusRules: map[int]string{422: "Release", 503: "Store", 429: "Store"}, TimeoutMillis: 30_000,
		}},
	}
}

func TestGolden(t *testing.T) {
	got, err := Encode(full())
	if err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/full.json"
	if *update {
		if err := os.WriteFile(golden, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("document (-want +got):\n%s", diff)
	}
	back, err := Decode(want)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(full(), back); diff != "" {
		t.Errorf("round trip (-want +got):\n%s", diff)
	}
}

func TestDecodeRefuses(t *testing.T) {
	document, err := Encode(full())
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ document, want string }{
		{"", "EOF"},
		{"null", "version"},
		{"[]", "array"},
		{string(document) + "{}", "text follows"},
		{strings.Replace(string(document), `"mode"`, `"moda"`, 1), `unknown field "moda"`},
		{`{"version": 2, "future": true}`, "version: 2 is not supported"},
		{strings.Replace(string(document), `"version": 1`, `"version": 2`, 1), "version: 2 is not supported"},
	} {
		if _, err := Decode([]byte(row.document)); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%.40q: got %v, want %q", row.document, err, row.want)
		}
	}
}

// TestValidate: one fault at a time, and the message names the field.
func TestValidate(t *testing.T) {
	for _, row := range []struct {
		at     string
		change func(*Config)
	}{
		{"keyspace", func(c *Config) { c.Keyspace = "" }},
		{"mode", func(c *Config) { c.Mode = "enforce" }},
		{"store.type", func(c *Config) { c.Store.Type = "" }},
		{"store.schema", func(c *Config) { c.Store.Schema = "" }},
		{"store.schema", func(c *Config) { c.Store.Type = "Redis" }},
		{"store.minReplicas", func(c *Config) { c.Store.MinReplicas = 1 }},
		{"store.minReplicas", func(c *Config) { c.Store = Store{Type: "Redis", MinReplicas: 6, OnUnavailable: "Reject"} }},
		{"store.onUnavailable", func(c *Config) { c.Store.OnUnavailable = "" }},
		{"client.type", func(c *Config) { c.Client.Type = "Cookie" }},
		{"client.jwt: it belongs", func(c *Config) { c.Client = Client{Type: "JWT"} }},
		{"client.jwt: it belongs", func(c *Config) { c.Client.JWT = sampleJWT() }},
		{"client.jwt.issuer", func(c *Config) { c.Client = Client{Type: "JWT", JWT: sampleJWT()}; c.Client.JWT.Issuer = "" }},
		{"client.jwt.audiences", func(c *Config) { c.Client = Client{Type: "JWT", JWT: sampleJWT()}; c.Client.JWT.Audiences = nil }},
		{"client.jwt.jwksURI", func(c *Config) { c.Client = Client{Type: "JWT", JWT: sampleJWT()}; c.Client.JWT.JWKSURI = "ftp://x/" }},
		{"client.jwt.claim", func(c *Config) { c.Client = Client{Type: "JWT", JWT: sampleJWT()}; c.Client.JWT.Claim = "" }},
		{"client.header", func(c *Config) { c.Client.Header = "x-client-id" }},
		{"client.header", func(c *Config) { c.Client.Header = "" }},
		{"client:", func(c *Config) { c.Client.Type = "Shared" }},
		{"client.trustedCIDRs[1]", func(c *Config) { c.Client.TrustedCIDRs[1] = "10.0.0.1" }},
		{"routes:", func(c *Config) { c.Routes = nil }},
		{"routes[0].name", func(c *Config) { c.Routes[0].Name = "" }},
		{"routes[1].name", func(c *Config) { c.Routes = append(c.Routes, c.Routes[0]) }},
		{"routes[0].methods:", func(c *Config) { c.Routes[0].Methods = nil }},
		{"routes[0].methods[1]", func(c *Config) { c.Routes[0].Methods[1] = "GET" }},
		{"routes[0].path", func(c *Config) { c.Routes[0].Path = "payments" }},
		{"routes[0].path", func(c *Config) { c.Routes[0].Path = "/{" }},
		{"routes[0].keyHeader", func(c *Config) { c.Routes[0].KeyHeader = "A B" }},
		{"routes[0].keyHeader", func(c *Config) { c.Routes[0].KeyHeader = "" }},
		{"routes[0].keyHeader", func(c *Config) { c.Routes[0].KeySource = "CloudEvent" }},
		{"routes[0].keySource", func(c *Config) { c.Routes[0].KeySource, c.Routes[0].KeyHeader = "Header", "" }},
		{"routes[0].keyPointer", func(c *Config) { c.Routes[0].KeyPointer = "/id" }},
		{"routes[0].keyPointer", func(c *Config) { c.Routes[0].KeySource, c.Routes[0].KeyHeader = "JSONPointer", "" }},
		{"routes[0].keyPointer", func(c *Config) {
			c.Routes[0].KeySource, c.Routes[0].KeyHeader, c.Routes[0].KeyPointer = "JSONPointer", "", "/a~"
		}},
		{"routes[0].keySource", func(c *Config) { c.Routes[0].KeySource, c.Routes[0].KeyHeader = "Fingerprint", "" }}, // it has a pattern
		{"routes[0].keyMaxLength", func(c *Config) { c.Routes[0].KeyMaxLength = 0 }},
		{"routes[0].keyMaxLength", func(c *Config) { c.Routes[0].KeyMaxLength = 256 }},
		{"routes[0].keyPattern", func(c *Config) { c.Routes[0].KeyPattern = "(" }},
		{"routes[0].windowMillis", func(c *Config) { c.Routes[0].WindowMillis = 59_999 }},
		{"routes[0].windowMillis", func(c *Config) { c.Routes[0].WindowMillis = 366*86_400_000 + 1 }},
		{"routes[0].fingerprintHeaders[0]", func(c *Config) { c.Routes[0].FingerprintHeaders[0] = "x" }},
		{"routes[0].fingerprintIgnore[0]", func(c *Config) { c.Routes[0].FingerprintIgnore[0] = "" }},
		{"routes[0].inFlight", func(c *Config) { c.Routes[0].InFlight = "" }},
		{"routes[0].maxWaitMillis", func(c *Config) { c.Routes[0].MaxWaitMillis = 60_001 }},
		{"routes[0].onUnknownOutcome", func(c *Config) { c.Routes[0].OnUnknownOutcome = "Guess" }},
		{"routes[0].reconcilePath", func(c *Config) { c.Routes[0].ReconcilePath = "" }},
		{"routes[0].reconcilePath", func(c *Config) { c.Routes[0].OnUnknownOutcome = "Block" }},
		{"routes[0].reconcilePath", func(c *Config) { c.Routes[0].ReconcilePath = "/%zz" }},
		{"routes[0].replayAuthorization", func(c *Config) { c.Routes[0].ReplayAuthorization = "//other.example/may" }},
		{"routes[0].replayAuthorization", func(c *Config) { c.Routes[0].ReplayAuthorization = "may" }},
		{"routes[0].replayAuthorization", func(c *Config) { c.Routes[0].ReplayAuthorization = "/may?x" }},
		{"routes[0].responseStore", func(c *Config) { c.Routes[0].ResponseStore = "Full" }},
		{"routes[0].responseMaxBytes", func(c *Config) { c.Routes[0].ResponseMaxBytes = -1 }},
		{"routes[0].responseMaxBytes", func(c *Config) { c.Routes[0].ResponseMaxBytes = 64<<20 + 1 }},
		{"routes[0].responseHeaders[0]", func(c *Config) { c.Routes[0].ResponseHeaders[0] = "" }},
		{"routes[0].statusRules", func(c *Config) { c.Routes[0].StatusRules[100] = "Store" }},
		{"routes[0].statusRules[422]", func(c *Config) { c.Routes[0].StatusRules[422] = "Keep" }},
		{"routes[0].timeoutMillis", func(c *Config) { c.Routes[0].TimeoutMillis = 0 }},
		{"routes[0].windowMillis: 60000 is shorter than timeoutMillis, 60001", func(c *Config) { c.Routes[0].WindowMillis, c.Routes[0].TimeoutMillis = 60_000, 60_001 }},
		{"routes[0].keyHeader: Host", func(c *Config) { c.Routes[0].KeyHeader = "Host" }},
		{"client.header: Host", func(c *Config) { c.Client.Header = "Host" }},
		{"routes[0].fingerprintHeaders[0]: Transfer-Encoding", func(c *Config) { c.Routes[0].FingerprintHeaders[0] = "Transfer-Encoding" }},
		{"routes[1].path", func(c *Config) {
			other := c.Routes[0]
			other.Name, other.Path = "other", "/{kind}/1"
			c.Routes = append(c.Routes, other)
		}},
	} {
		c := full()
		row.change(&c)
		_, err := Encode(c)
		if err == nil || !strings.Contains(err.Error(), row.at) {
			t.Errorf("%s: got %v", row.at, err)
		}
	}
}

func sampleJWT() *JWT {
	return &JWT{Issuer: "https://issuer.example", Audiences: []string{"shop"}, JWKSURI: "https://issuer.example/keys", Claim: "sub"}
}

func FuzzDecode(f *testing.F) {
	document, err := Encode(full())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(document)
	f.Add([]byte(`{"version":1}`))
	f.Add([]byte(`{"version":1,"routes":[{"path":"/{a}/{a}"}]}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		c, err := Decode(document)
		if err != nil {
			return
		}
		first, err := Encode(c)
		if err != nil {
			t.Fatalf("what was decoded is not encoded: %v", err)
		}
		again, err := Decode(first)
		if err != nil {
			t.Fatalf("what was encoded is not decoded: %v", err)
		}
		second, err := Encode(again)
		if err != nil || !bytes.Equal(first, second) {
			t.Fatalf("%v: %s becomes %s", err, first, second)
		}
		if !json.Valid(first) {
			t.Fatal("not JSON")
		}
	})
}
