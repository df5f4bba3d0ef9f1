// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

func TestCompileSample(t *testing.T) {
	got := execute(t, "", "compile", "-f", samplePath, "-n", "shop")
	if got.failure != nil {
		t.Fatal(got.failure)
	}
	config, err := proxyconfig.Decode([]byte(got.out))
	if err != nil {
		t.Fatalf("the sidecar does not take it: %v", err)
	}
	if config.Keyspace != "shop.payments" || config.Policy.Namespace != "shop" || len(config.Routes) != 1 {
		t.Errorf("compiled to %+v", config)
	}
	path := filepath.Join(t.TempDir(), "config.json")
	if again := execute(t, "", "compile", "-f", samplePath, "-n", "shop", "-o", path); again.failure != nil || again.out != "" {
		t.Fatalf("with -o: output %q, error %v", again.out, again.failure)
	}
	written, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got.out, string(written)); diff != "" {
		t.Errorf("the file differs from standard output (-output +file):\n%s", diff)
	}
}

func TestCompileReadsStandardInput(t *testing.T) {
	sample, err := os.ReadFile(samplePath)
	if err != nil {
		t.Fatal(err)
	}
	const secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: payments-db}\n---\n"
	direct := execute(t, "", "compile", "-f", samplePath)
	piped := execute(t, secret+string(sample), "compile", "-f", "-")
	if piped.failure != nil {
		t.Fatal(piped.failure)
	}
	if diff := cmp.Diff(direct.out, piped.out); diff != "" {
		t.Errorf("beside a Secret on standard input it compiles to something else (-file +input):\n%s", diff)
	}
}

func TestCompileRefuses(t *testing.T) {
	sample, err := os.ReadFile(samplePath)
	if err != nil {
		t.Fatal(err)
	}
	text := string(sample)
	replace := func(from, to string) string {
		if !strings.Contains(text, from) {
			t.Fatalf("the sample does not hold %q", from)
		}
		return strings.Replace(text, from, to, 1)
	}
	tests := []struct {
		reason, input string
		says          []string
	}{
		{"nothing", "", []string{"standard input", "no IdempotencyPolicy"}},
		{"no YAML", "{", []string{"standard input"}},
		{"another version", replace("idempotency.dev/v1alpha1", "idempotency.dev/v2"), []string{`"idempotency.dev/v2"`, "idempotency.dev/v1alpha1"}},
		{"two policies", text + "\n---\n" + text, []string{"more than one"}},
		{"an unknown field", replace("  target:", "  tarjet: x\n  target:"), []string{`"spec.tarjet"`}},
		{"a field twice", replace("  client:", "  client: {}\n  client:"), []string{"already set"}},
		{"no name", replace("  name: payments\n", "  labels: {}\n"), []string{"metadata.name"}},
		{"every mistake at once, each with its field", strings.Replace(replace("window: 24h", "window: 0s"), "/payments", "payments", 1),
			[]string{"policy payments in standard input is not valid:\n  spec.retention.window: ", "\n  spec.routes[0].path: "}},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			got := execute(t, tt.input, "compile", "-f", "-")
			for _, says := range tt.says {
				if !strings.Contains(got.message(), says) {
					t.Errorf("error is %q and does not say %q", got.message(), says)
				}
			}
			if got.out != "" {
				t.Errorf("it wrote %q", got.out)
			}
		})
	}
}

func TestCompileNeedsAFile(t *testing.T) {
	if got := execute(t, "", "compile"); !strings.Contains(got.message(), "filename") {
		t.Errorf("without -f: error %v", got.failure)
	}
	if got := execute(t, "", "compile", "-f", "/no/such/file"); !strings.Contains(got.message(), "/no/such/file") {
		t.Errorf("with a file that is not there: error %v", got.failure)
	}
}
