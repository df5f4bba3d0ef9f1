// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

const basePolicy = `
apiVersion: idempotency.dev/v1alpha1
kind: IdempotencyPolicy
metadata: {name: base}
spec:
  selector: {matchLabels: {app: payments}}
  target: {port: http}
  store: {postgres: {dsnSecretRef: {name: db}}}
  client: {header: X-Client-Id}
  routes:
  - {name: create, methods: [POST], path: /payments}
`

func unstructuredPolicy(t *testing.T, spec string) *unstructured.Unstructured {
	t.Helper()
	base := map[string]any{}
	if err := yaml.Unmarshal([]byte(basePolicy), &base); err != nil {
		t.Fatal(err)
	}
	change := map[string]any{}
	if err := yaml.Unmarshal([]byte(spec), &change); err != nil {
		t.Fatalf("row %q: %v", spec, err)
	}
	for field, value := range change {
		if value == nil {
			delete(base["spec"].(map[string]any), field)
			continue
		}
		base["spec"].(map[string]any)[field] = value
	}
	return &unstructured.Unstructured{Object: base}
}

// TestAdmission shows what the API server alone, without any webhook, refuses, and that it says what to write instead.
func TestAdmission(t *testing.T) {
	route := func(more string) string {
		return "routes: [{name: create, methods: [POST], path: /payments, " + more + "}]"
	}
	tests := []struct {
		spec   string
		want   string // part of the refusal; empty: accepted
		reason string
	}{
		{spec: ``, reason: "the shortest policy is enough"},
		{spec: `selector: null`, want: "spec.selector", reason: "no selector"},
		{spec: `selector: {}`, want: "name at least one label, such as matchLabels: {app: payments}", reason: "an empty selector selects everything"},
		{spec: `selector: {matchLabels: {}}`, want: "name at least one label", reason: "an empty map is an empty selector"},
		{spec: `store: {}`, want: "set exactly one of postgres and redis", reason: "no store"},
		{spec: `store: {postgres: {dsnSecretRef: {name: db}}, redis: {dsnSecretRef: {name: db}}}`, want: "set exactly one of postgres and redis", reason: "two stores"},
		{spec: `store: {redis: {dsnSecretRef: {name: db}}}`, reason: "the other store"},
		{spec: `store: {redis: {dsnSecretRef: {name: db}, minReplicas: 5}}`, reason: "the most replicas"},
		{spec: `store: {redis: {dsnSecretRef: {name: db}, minReplicas: 6}}`, want: "minReplicas", reason: "one replica more"},
		{spec: `store: {postgres: {dsnSecretRef: {name: db}, schema: 'a"b'}}`, want: "schema", reason: "a schema is an identifier"},
		{spec: `consumers: [{name: orders, window: 7d}, {name: audit, window: 366d}]`, reason: "two consumers"},
		{spec: `consumers: []`, reason: "no consumers"},
		{spec: `consumers: [{name: orders, window: 1m}, {name: orders, window: 2m}]`, want: "Duplicate", reason: "one consumer twice"},
		{spec: `consumers: [{name: orders}]`, want: "window", reason: "how long cannot be guessed"},
		{spec: `consumers: [{name: orders, window: 59s}]`, want: "between 1m and 366d", reason: "just below the least"},
		{spec: `consumers: [{name: orders, window: 367d}]`, want: "between 1m and 366d", reason: "just above the most"},
		{spec: `consumers: [{name: Orders, window: 7d}]`, want: "name", reason: "names are as those of routes"},
		{spec: "store: {redis: {dsnSecretRef: {name: db}}}\nconsumers: [{name: orders, window: 7d}]", want: "consumers need store.postgres", reason: "Redis has no transactions for an app"},
		{spec: `retention: {window: 0s}`, want: "between 1m and 366d", reason: "a window of nothing"},
		{spec: `retention: {window: 2562048h}`, want: "between 1m and 366d", reason: "overflows a 64-bit duration"},
		{spec: `retention: {window: -1h}`, want: "between 1m and 366d", reason: "negative"},
		{spec: `retention: {window: 1ns}`, want: "between 1m and 366d", reason: "too fine a unit"},
		{spec: `retention: {window: 59s}`, want: "between 1m and 366d", reason: "just below the least"},
		{spec: `retention: {window: 60s}`, reason: "the least"},
		{spec: `retention: {window: 1m}`, reason: "the least, in minutes"},
		{spec: `retention: {window: 366d}`, reason: "the most"},
		{spec: `retention: {window: 8784h}`, reason: "the most, in hours"},
		{spec: `retention: {window: 366d1s}`, want: "between 1m and 366d", reason: "just above the most"},
		{spec: `retention: {window: 367d}`, want: "between 1m and 366d", reason: "a day above the most"},
		{spec: `retention: {window: 0d}`, want: "between 1m and 366d", reason: "no days"},
		{spec: `retention: {window: 1h30m}`, reason: "hours, minutes and seconds combine"},
		{spec: `retention: {window: 1d12h}`, want: "such as 24h or 1h30m", reason: "days stand alone"},
		{spec: `retention: {window: 999999h999999m999999s}`, want: "between 1m and 366d", reason: "the largest number of the form does not overflow"},
		{spec: `retention: {window: 30m1h}`, want: "between 1m and 366d", reason: "in the documented order only"},
		{spec: `retention: {window: ""}`, want: "between 1m and 366d", reason: "empty"},
		{spec: `retention: {createAhead: 0}`, want: "createAhead", reason: "no runway at all"},
		{spec: `retention: {createAhead: 60}`, reason: "the longest runway"},
		{spec: `retention: {createAhead: 61}`, want: "createAhead", reason: "just above it"},
		{spec: route(`window: 0s`), want: "between 1m and 366d", reason: "a route's window has the same bounds"},
		{spec: route(`window: 2562048h`), want: "between 1m and 366d", reason: "and does not overflow either"},
		{spec: route(`window: 72h`), reason: "a route's own window"},
		{spec: route(`onUnknownOutcome: Reconcile`), want: "set both or neither", reason: "nobody to ask"},
		{spec: route(`reconcilePath: /x`), want: "set both or neither", reason: "a path that nobody asks"},
		{spec: route(`onUnknownOutcome: Reconcile, reconcilePath: /x`), reason: "reconcile with its path"},
		{spec: route(`key: {source: {header: X-GitHub-Delivery}}`), reason: "a key in another header"},
		{spec: route(`key: {required: false}`), reason: "the source has a default of its own"},
		{spec: route(`key: {source: {cloudEvent: {}}}`), reason: "an event's source and id"},
		{spec: route(`key: {source: {jsonPointer: /event/id}}`), reason: "a key in the body"},
		{spec: route(`key: {source: {fingerprint: {}}}, window: 1m`), reason: "no key at all"},
		{spec: route(`key: {source: {}}`), want: "set exactly one of header, cloudEvent, jsonPointer and fingerprint", reason: "no source"},
		{spec: route(`key: {source: {header: X-Id, cloudEvent: {}}}`), want: "set exactly one of header, cloudEvent, jsonPointer and fingerprint", reason: "two sources"},
		{spec: route(`key: {source: {jsonPointer: id}}`), want: "a JSON pointer begins with /", reason: "a bare name"},
		{spec: route(`key: {source: {jsonPointer: ""}}`), want: "jsonPointer", reason: "the whole body"},
		{spec: route(`key: {source: {fingerprint: {}}}`), want: "write the route's own window", reason: "how long equal requests are one cannot be guessed"},
		{spec: route(`key: {source: {fingerprint: {}}, required: false}, window: 1m`), want: "remove required and pattern", reason: "a fingerprint is never missing"},
		{spec: route(`key: {source: {fingerprint: {}}, pattern: a}, window: 1m`), want: "remove required and pattern", reason: "a fingerprint matches no pattern"},
		{spec: route(`responses: {store: Reference}`), reason: "bodies stay with the app"},
		{spec: route(`responses: {store: Link}`), want: "Unsupported value: \"Link\"", reason: "another way to keep answers"},
		{spec: `routes: []`, want: "spec.routes", reason: "no route protects nothing"},
		{spec: `routes: [{name: a, methods: [POST], path: payments}]`, want: "a path begins with /", reason: "a relative path"},
		{spec: `routes: [{name: a, methods: [GET], path: /}]`, want: "Unsupported value: \"GET\"", reason: "GET has no effect to protect"},
		{spec: `routes: [{name: a, methods: [POST], path: /a}, {name: a, methods: [POST], path: /b}]`, want: "Duplicate value", reason: "names are unique"},
		{spec: `client: {}`, want: "set exactly one of header, jwt, authorization and shared", reason: "nobody"},
		{spec: `client: {header: X-Client-Id, shared: {}}`, want: "set exactly one of header, jwt, authorization and shared", reason: "two answers"},
		{spec: `client: {shared: {}, trustedCIDRs: [10.0.0.0/8]}`, want: "trustedCIDRs belongs to header", reason: "no header to trust"},
		{spec: `client: {header: X-Client-Id, trustedCIDRs: [10.0.0.0]}`, want: "write an address range such as 10.0.0.0/8", reason: "an address is not a range"},
		{spec: `client: {header: "X Client"}`, want: "header", reason: "not a header name"},
		{spec: `target: {port: 8080}`, want: "write the name of the container port", reason: "NamedPort needs a name"},
		{spec: `target: {port: 8080, interception: None}`, reason: "None takes a number"},
		{spec: `keyspace: Orders`, want: "keyspace", reason: "upper case"},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			p := unstructuredPolicy(t, tt.spec)
			p.SetNamespace("default")
			err := server.client.Create(t.Context(), p, client.DryRunAll)
			switch {
			case tt.want == "" && err != nil:
				t.Fatalf("refused: %v", err)
			case tt.want != "" && err == nil:
				t.Fatalf("accepted %s", tt.spec)
			case tt.want != "" && !strings.Contains(err.Error(), tt.want):
				t.Fatalf("refused with\n%v\nwhich does not say %q", err, tt.want)
			}
		})
	}
}

// TestIdentityIsImmutable changes what entries are found by. Keyspace and kind of store are for the webhook, and for TestMoveIsRefused.
func TestIdentityIsImmutable(t *testing.T) {
	for _, tt := range []struct{ before, after, reason string }{
		{before: `client: {header: X-A}`, after: `client: {header: X-B}`, reason: "clients known by another header"},
		{before: `client: {header: X-A}`, after: `client: {authorization: {}}`, reason: "clients known by their credentials"},
		{before: `client: {authorization: {}}`, after: `client: {shared: {}}`, reason: "clients no longer told apart"},
		{before: ``, after: `store: {postgres: {dsnSecretRef: {name: db}, schema: other}}`, reason: "tables in another schema"},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			ns := newNamespace(t)
			p := unstructuredPolicy(t, tt.before)
			p.SetNamespace(ns)
			create(t, p)
			changed := unstructuredPolicy(t, tt.after)
			p.Object["spec"] = changed.Object["spec"]
			err := server.client.Update(t.Context(), p)
			if err == nil || !strings.Contains(err.Error(), "create a new policy instead") {
				t.Fatalf("update said %v", err)
			}
		})
	}
}

func TestTrustMayChange(t *testing.T) {
	ns := newNamespace(t)
	p := unstructuredPolicy(t, `client: {header: X-Client-Id}`)
	p.SetNamespace(ns)
	create(t, p)
	p.Object["spec"] = unstructuredPolicy(t, `client: {header: x-client-id, trustedCIDRs: [10.0.0.0/8]}`).Object["spec"]
	if err := server.client.Update(t.Context(), p); err != nil {
		t.Fatalf("who may set the header cannot change: %v", err)
	}
}
