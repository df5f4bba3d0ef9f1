// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/policy"
)

// policyFile is a policy that is read from a file, without a cluster.
type policyFile struct {
	path      string
	namespace string
}

func (f *policyFile) bind(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.path, "filename", "f", "", "file with the policy, YAML or JSON; - for standard input (required)")
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "default", "namespace of a policy that names none")
	_ = cmd.MarkFlagRequired("filename") // fails for an unknown flag only
}

// read reads the one policy of the file, with its defaults, and fails for everything that an API server would refuse.
func (f *policyFile) read(in io.Reader) (*v1alpha1.IdempotencyPolicy, error) {
	name := f.path
	if f.path == "-" {
		name = "standard input"
	} else {
		file, err := os.Open(f.path)
		if err != nil {
			return nil, fmt.Errorf("open policy: %w", err)
		}
		defer func() { _ = file.Close() }()
		in = file
	}
	p, err := decodePolicy(in)
	if err != nil {
		return nil, fmt.Errorf("read policy from %s: %w", name, err)
	}
	if p.Namespace == "" {
		p.Namespace = f.namespace
	}
	policy.Default(p)
	if errs := policy.Validate(p); len(errs) > 0 {
		var lines strings.Builder
		for _, err := range errs {
			fmt.Fprintf(&lines, "\n  %s", err)
		}
		return nil, fmt.Errorf("policy %s in %s is not valid:%s", p.Name, name, &lines)
	}
	return p, nil
}

// decodePolicy returns the one policy among the documents of in; documents of other kinds, such as the Secret beside it, are left alone.
func decodePolicy(in io.Reader) (*v1alpha1.IdempotencyPolicy, error) {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(in))
	var found *v1alpha1.IdempotencyPolicy
	for {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(text, &kind); err != nil {
			return nil, err
		}
		if kind.Kind != "IdempotencyPolicy" {
			continue
		}
		if kind.APIVersion != v1alpha1.GroupVersion.String() {
			return nil, fmt.Errorf("apiVersion is %q, want %q", kind.APIVersion, v1alpha1.GroupVersion)
		}
		if found != nil {
			return nil, errors.New("it holds more than one IdempotencyPolicy")
		}
		if found, err = decodeStrict(text); err != nil {
			return nil, err
		}
	}
	if found == nil {
		return nil, errors.New("it holds no IdempotencyPolicy")
	}
	if found.Name == "" {
		return nil, errors.New("metadata.name is missing")
	}
	return found, nil
}

// decodeStrict decodes as the API server does with strict validation: names are case-sensitive, unknown and repeated fields are errors.
func decodeStrict(text []byte) (*v1alpha1.IdempotencyPolicy, error) {
	document, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, err
	}
	p := &v1alpha1.IdempotencyPolicy{}
	strict, err := json.UnmarshalStrict(document, p)
	if err := errors.Join(append(strict, err)...); err != nil {
		return nil, err
	}
	return p, nil
}
