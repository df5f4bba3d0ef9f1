// SPDX-License-Identifier: Apache-2.0

package inject_test

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/idempotency-dev/operator/internal/inject/injecttest"
)

// FuzzPod holds the properties over arbitrary pods.
func FuzzPod(f *testing.F) {
	for _, c := range injecttest.Cases(f, "testdata/in") {
		f.Add([]byte(c.Pod), []byte(c.Spec))
	}
	f.Fuzz(func(t *testing.T, encoded, spec []byte) {
		pod := &corev1.Pod{}
		if json.Unmarshal(encoded, pod) != nil {
			return
		}
		c := injecttest.Case{}
		if p := injecttest.Policy(); len(spec) > 0 && json.Unmarshal(spec, &p.Spec) == nil {
			c.Spec = spec
		}
		properties(t, c.Sidecar(t), pod)
	})
}
