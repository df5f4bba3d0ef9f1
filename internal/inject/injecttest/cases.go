// SPDX-License-Identifier: Apache-2.0

// Package injecttest reads the pods that injection is tested with: files of YAML documents, one case each.
package injecttest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject"
)

// DefaultImage is the sidecar's image where a case names none.
const DefaultImage = "registry.example.com/idempotency-proxy:1.0.0"

// Case is a pod and the policy that selects it.
type Case struct {
	// Name is unique among all files.
	Name string `json:"name"`
	// Why says what the case shows.
	Why string `json:"why"`
	// Spec is merged over the spec of Policy.
	Spec json.RawMessage `json:"spec,omitempty"`
	// Pod as a client sends it: it may hold fields that our types do not know.
	Pod json.RawMessage `json:"pod"`
}

// Cases returns the cases of every .yaml file in dir.
func Cases(tb testing.TB, dir string) []Case {
	tb.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		tb.Fatalf("find cases in %s: %d files, %v", dir, len(files), err)
	}
	var cases []Case
	seen := map[string]bool{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			tb.Fatal(err)
		}
		documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
		for {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				tb.Fatalf("read %s: %v", file, err)
			}
			var c Case
			if err := yaml.UnmarshalStrict(document, &c); err != nil {
				tb.Fatalf("decode a case of %s: %v\n%s", file, err, document)
			}
			if c.Name == "" || c.Why == "" || len(c.Pod) == 0 || seen[c.Name] {
				tb.Fatalf("a case of %s needs a name of its own, a reason and a pod: %q", file, c.Name)
			}
			seen[c.Name] = true
			cases = append(cases, c)
		}
	}
	return cases
}

// Policy returns the policy of the case.
func (c Case) Policy(tb testing.TB) *v1alpha1.IdempotencyPolicy {
	tb.Helper()
	p := Policy()
	if len(c.Spec) > 0 {
		if err := json.Unmarshal(c.Spec, &p.Spec); err != nil {
			tb.Fatalf("decode spec of case %s: %v", c.Name, err)
		}
	}
	return p
}

// Decode returns the pod of the case as our types see it.
func (c Case) Decode(tb testing.TB) *corev1.Pod {
	tb.Helper()
	pod := &corev1.Pod{}
	if err := json.Unmarshal(c.Pod, pod); err != nil {
		tb.Fatalf("decode pod of case %s: %v", c.Name, err)
	}
	return pod
}

// Sidecar returns the sidecar of the case.
func (c Case) Sidecar(tb testing.TB) inject.Sidecar {
	tb.Helper()
	return inject.FromPolicy(c.Policy(tb), DefaultImage)
}

// Policy returns a valid policy for pods labelled app: payments, whose port is named http.
func Policy() *v1alpha1.IdempotencyPolicy {
	return &v1alpha1.IdempotencyPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "payments", Namespace: "shop"},
		Spec: v1alpha1.IdempotencyPolicySpec{
			Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "payments"}},
			Target:   v1alpha1.Target{Port: intstr.FromString("http"), Interception: v1alpha1.InterceptNamedPort},
			Store: v1alpha1.Store{Postgres: &v1alpha1.PostgresStore{
				DSNSecretRef: v1alpha1.SecretKeyRef{Name: "payments-db", Key: "dsn"},
			}},
			Client: v1alpha1.Client{Header: "X-Client-Id"},
			Routes: []v1alpha1.Route{{Name: "create-payment", Methods: []v1alpha1.Method{"POST"}, Path: "/payments"}},
		},
	}
}
