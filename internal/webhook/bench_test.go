// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject/injecttest"
)

// BenchmarkHandle answers for one pod, with as many policies in its namespace.
func BenchmarkHandle(b *testing.B) {
	for _, count := range []int{1, 100, 5000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			policies := make([]*v1alpha1.IdempotencyPolicy, count)
			for i := range policies {
				policies[i] = injecttest.Policy()
				policies[i].Name, policies[i].CreationTimestamp = fmt.Sprint("p", i), metav1.Unix(int64(i), 0)
				policies[i].Spec.Selector.MatchLabels = map[string]string{"app": fmt.Sprint("app-", i)}
			}
			policies[count-1].Spec.Selector.MatchLabels = map[string]string{"app": "payments"}
			d := newDesk(b, holding(policies...), false)
			req := creation(b, replicaSetPod())
			for b.Loop() {
				if response := d.handler.Handle(b.Context(), req); len(response.Patches) == 0 {
					b.Fatal("no patch")
				}
			}
		})
	}
}
