// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/policy"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

var update = flag.Bool("update", false, "write testdata/*.json anew")

func TestCompile(t *testing.T) {
	full := sample(t)
	if err := yaml.UnmarshalStrict([]byte(fullText), full); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		reason, golden string
		policy         *v1alpha1.IdempotencyPolicy
	}{
		{"the sample, where nearly everything is a default", "testdata/payments.json", sample(t)},
		{"every field set, in no order and no canonical form", "testdata/full.json", full},
	}
	redis := sample(t)
	redis.Spec.Store = v1alpha1.Store{Redis: &v1alpha1.RedisStore{DSNSecretRef: v1alpha1.SecretKeyRef{Name: "redis"}, MinReplicas: 1}}
	tests = append(tests, struct {
		reason, golden string
		policy         *v1alpha1.IdempotencyPolicy
	}{"Redis", "testdata/redis.json", redis})
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			before := tt.policy.DeepCopy()
			config, err := policy.Compile(tt.policy)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, tt.policy); diff != "" {
				t.Errorf("Compile changed its argument (-before +after):\n%s", diff)
			}
			got, err := json.MarshalIndent(config, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			if *update {
				if err := os.WriteFile(tt.golden, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(tt.golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("compiled configuration (-golden +got):\n%s", diff)
			}
		})
	}
}

const fullText = `
metadata: {name: full, namespace: shop, generation: 7}
spec:
  mode: Audit
  target: {port: 8080, interception: None}
  store: {onUnavailable: PassThrough, postgres: {schema: keys, dsnSecretRef: {name: db}}}
  keyspace: money
  retention: {window: 30d}
  client: {header: x-client-id, trustedCIDRs: ["fd00::/8", "10.1.2.3/8", "10.0.0.0/8"]}
  routes:
  - name: put
    methods: [PUT, PATCH]
    path: /payments/{id}
    key: {required: false, source: {header: x-request-key}, maxLength: 36, pattern: "[0-9a-f-]+"}
    window: 1d12h
    fingerprint: {canonicalJSON: true, headers: [x-tenant, X-Branch, X-Tenant], ignore: [/z, /a]}
    inFlight: {mode: Wait, maxWait: 500ms}
    onUnknownOutcome: Reconcile
    reconcilePath: /reconcile
    responses: {store: Reference, maxBytes: 64Ki, headers: [x-b, X-A], statuses: {"503": Store, "422": Release}}
    timeout: 1m30s
  - {name: create, methods: [POST], path: /payments, onUnknownOutcome: Reexecute}
`

// TestCompileIgnoresOrder turns every list around: the configuration, and so the sidecar's hash, must not change.
func TestCompileIgnoresOrder(t *testing.T) {
	p := &v1alpha1.IdempotencyPolicy{}
	text := strings.Replace(fullText, "spec:", "spec:\n  selector: {matchLabels: {app: payments}}", 1)
	if err := yaml.UnmarshalStrict([]byte(text), p); err != nil {
		t.Fatal(err)
	}
	first, err := policy.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(p.Spec.Client.TrustedCIDRs)
	slices.Reverse(p.Spec.Routes)
	for i := range p.Spec.Routes {
		r := &p.Spec.Routes[i]
		slices.Reverse(r.Methods)
		slices.Reverse(r.Fingerprint.Headers)
		slices.Reverse(r.Fingerprint.Ignore)
		slices.Reverse(r.Responses.Headers)
	}
	second, err := policy.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("the order of lists shows (-first +turned around):\n%s", diff)
	}
}

func TestCompileClients(t *testing.T) {
	tests := []struct {
		reason string
		client v1alpha1.Client
		want   proxyconfig.Client
	}{
		{"header", v1alpha1.Client{Header: "x-client-ID"}, proxyconfig.Client{Type: "Header", Header: "X-Client-Id"}},
		{"authorization", v1alpha1.Client{Authorization: &v1alpha1.AuthorizationClient{}}, proxyconfig.Client{Type: "Authorization"}},
		{"shared", v1alpha1.Client{Shared: &v1alpha1.SharedClient{}}, proxyconfig.Client{Type: "Shared"}},
	}
	for _, tt := range tests {
		p := sample(t)
		p.Spec.Client = tt.client
		config, err := policy.Compile(p)
		if err != nil {
			t.Errorf("%s: %v", tt.reason, err)
		}
		if diff := cmp.Diff(tt.want, config.Client); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
		}
	}
}

func TestCompileKeySources(t *testing.T) {
	type key struct{ Source, Header, Pointer string }
	for _, tt := range []struct {
		source v1alpha1.KeySource
		want   key
	}{
		{v1alpha1.KeySource{}, key{Header: "Idempotency-Key"}},
		{v1alpha1.KeySource{Header: "x-github-delivery"}, key{Header: "X-Github-Delivery"}},
		{v1alpha1.KeySource{CloudEvent: &v1alpha1.CloudEventKey{}}, key{Source: "CloudEvent"}},
		{v1alpha1.KeySource{JSONPointer: "/id"}, key{Source: "JSONPointer", Pointer: "/id"}},
		{v1alpha1.KeySource{Fingerprint: &v1alpha1.FingerprintKey{}}, key{Source: "Fingerprint"}},
	} {
		p := sample(t)
		p.Spec.Routes[0].Key.Source, p.Spec.Routes[0].Window = tt.source, "1m"
		config, err := policy.Compile(p)
		if err != nil {
			t.Fatalf("%+v: %v", tt.source, err)
		}
		r := config.Routes[0]
		if got := (key{r.KeySource, r.KeyHeader, r.KeyPointer}); got != tt.want {
			t.Errorf("%+v compiles to %+v", tt.source, got)
		}
		if _, err := proxyconfig.Encode(config); err != nil {
			t.Errorf("%+v: %v", tt.source, err)
		}
	}
}

func TestCompileRefusesWhatIsNotValid(t *testing.T) {
	p := sample(t)
	p.Spec.Routes[0].Window = "0s"
	_, err := policy.Compile(p)
	if err == nil || !strings.Contains(err.Error(), "spec.routes[0].window") {
		t.Errorf("error is %v, want one that names spec.routes[0].window", err)
	}
}

// FuzzCompile feeds policies of any text: never a panic, and what Validate lets through compiles to what the sidecar takes.
func FuzzCompile(f *testing.F) {
	for _, seed := range []string{"", fullText, "spec: {routes: [{}]}", "spec: {store: {postgres: {}}, routes: [{path: '/{', methods: [POST]}]}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p := sample(t)
		if yaml.Unmarshal([]byte(text), p) != nil {
			return
		}
		config, err := policy.Compile(p)
		if err != nil {
			return
		}
		if _, err := proxyconfig.Encode(config); err != nil {
			t.Errorf("the sidecar refuses what Validate let through: %v", err)
		}
	})
}
