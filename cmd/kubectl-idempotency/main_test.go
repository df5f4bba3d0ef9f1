// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files in testdata anew")

const samplePath = "../../config/samples/payments.yaml"

// result is what one command line gave.
type result struct {
	out, err string
	failure  error
}

func (r result) message() string {
	if r.failure == nil {
		return ""
	}
	return r.failure.Error()
}

// execute runs one command line in process, with input as its standard input and without environment variables.
func execute(t *testing.T, input string, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	err := run(t.Context(), args, func(string) string { return "" }, streams{in: strings.NewReader(input), out: &out, err: &errOut})
	return result{out: out.String(), err: errOut.String(), failure: err}
}

func compareGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("output differs from %s (-golden +got):\n%s", path, diff)
	}
}

func TestVersion(t *testing.T) {
	got := execute(t, "", "--version")
	if got.failure != nil || !strings.Contains(got.out, "kubectl idempotency version "+version) {
		t.Errorf("output %q, error %v", got.out, got.failure)
	}
}

func TestUnknownCommand(t *testing.T) {
	if got := execute(t, "", "repair-everything"); got.failure == nil {
		t.Errorf("no error; output %q", got.out)
	}
}
