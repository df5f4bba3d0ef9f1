// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/policy"
)

// TestDefaultIsWhatTheSchemaSays applies the CRD's own defaults, as the API server does, and compares.
func TestDefaultIsWhatTheSchemaSays(t *testing.T) {
	admitted := sample(t)
	object := readYAML(t, samplePath)
	applyDefaults(object, crdSchema(t))
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, admitted); err != nil {
		t.Fatal(err)
	}
	admitted.Namespace = "shop"

	ours := sample(t)
	policy.Default(ours)
	if diff := cmp.Diff(admitted.Spec, ours.Spec); diff != "" {
		t.Errorf("Default differs from the schema (-schema +Default):\n%s", diff)
	}
	again := ours.DeepCopy()
	policy.Default(again)
	if diff := cmp.Diff(ours, again); diff != "" {
		t.Errorf("Default applied twice (-once +twice):\n%s", diff)
	}
}

func TestDefaultKeepsWhatIsWritten(t *testing.T) {
	text := `
spec:
  mode: Audit
  target: {port: 8080, interception: None, scheme: HTTPS}
  store: {onUnavailable: PassThrough, encryptionKeySecretRef: {name: s, key: k}, postgres: {schema: keys, dsnSecretRef: {name: s, key: k}, adminDSNSecretRef: {name: s, key: a}}}
  retention: {window: 30d, createAhead: 2, deletionPolicy: Delete}
  routes:
  - key: {required: false, source: {header: X-Key}, maxLength: 36}
    fingerprint: {canonicalJSON: false}
    inFlight: {mode: Wait, maxWait: 500ms}
    onUnknownOutcome: Reexecute
    responses: {store: Reference, maxBytes: "0"}
    timeout: 5s
  sidecar: {logLevel: debug}
  rollout: {strategy: Restart}
`
	written, defaulted := &v1alpha1.IdempotencyPolicy{}, &v1alpha1.IdempotencyPolicy{}
	for _, p := range []*v1alpha1.IdempotencyPolicy{written, defaulted} {
		if err := yaml.UnmarshalStrict([]byte(text), p); err != nil {
			t.Fatal(err)
		}
	}
	policy.Default(defaulted)
	if diff := cmp.Diff(written, defaulted); diff != "" {
		t.Errorf("Default changed what was written (-written +defaulted):\n%s", diff)
	}
	if got := defaulted.Spec.Routes[0].Responses.MaxBytes; got.Cmp(resource.MustParse("0")) != 0 {
		t.Errorf("maxBytes: 0 became %s", got.String())
	}
}

// readYAML reads a file as the object that a client sends: only what is written.
func readYAML(t *testing.T, path string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	object := map[string]any{}
	if err := yaml.Unmarshal(text, &object); err != nil {
		t.Fatal(err)
	}
	return object
}

// crdSchema is the OpenAPI schema of the one version of the CRD.
func crdSchema(t *testing.T) map[string]any {
	t.Helper()
	crd := readYAML(t, "../../config/crd/bases/idempotency.dev_idempotencypolicies.yaml")
	versions, _, err := unstructured.NestedSlice(crd, "spec", "versions")
	if err != nil || len(versions) != 1 {
		t.Fatalf("the CRD has %d versions: %v", len(versions), err)
	}
	schema, found, err := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema")
	if err != nil || !found {
		t.Fatalf("the CRD has no schema: %v", err)
	}
	return schema
}

// applyDefaults sets in value what schema's defaults say, from the outside in, as the API server does:
// https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#defaulting
func applyDefaults(value any, schema map[string]any) {
	switch value := value.(type) {
	case map[string]any:
		properties, _ := schema["properties"].(map[string]any)
		for name, property := range properties {
			property := property.(map[string]any)
			if byDefault, found := property["default"]; found && value[name] == nil {
				value[name] = runtime.DeepCopyJSONValue(byDefault)
			}
			applyDefaults(value[name], property)
		}
	case []any:
		items, _ := schema["items"].(map[string]any)
		for _, item := range value {
			applyDefaults(item, items)
		}
	}
}
