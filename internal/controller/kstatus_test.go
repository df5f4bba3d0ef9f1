// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

// seen waits until tools that know kstatus, as Flux and Argo CD do, see the policy so.
func (w *world) seen(name string, want status.Status) {
	w.t.Helper()
	eventually(w.t, func() error {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("IdempotencyPolicy"))
		if err := server.client.Get(w.t.Context(), types.NamespacedName{Namespace: w.namespace, Name: name}, u); err != nil {
			return err
		}
		result, err := status.Compute(u)
		if err != nil {
			return err
		}
		if result.Status != want {
			return fmt.Errorf("kstatus is %s (%s), not %s", result.Status, result.Message, want)
		}
		return nil
	})
}

func TestKstatus(t *testing.T) {
	t.Parallel()
	w := makeWorld(t)
	w.policy("payments", nil)
	w.seen("payments", status.InProgressStatus) // nobody runs yet
	w.run(clock.RealClock{}, false)
	w.seen("payments", status.CurrentStatus)

	mend := w.unreachable()
	w.nudge("payments")
	w.await("payments", v1alpha1.ConditionStoreHealthy, metav1.ConditionFalse, v1alpha1.ReasonUnreachable)
	w.seen("payments", status.InProgressStatus)
	mend()
	w.seen("payments", status.CurrentStatus)

	w.policy("stuck", func(p *v1alpha1.IdempotencyPolicy) {
		p.Spec.Selector.MatchLabels = map[string]string{"app": "stuck"}
		p.Spec.Store.Postgres.DSNSecretRef.Name = "nowhere"
	})
	w.seen("stuck", status.FailedStatus)

	deleted := w.policy("deleted", func(p *v1alpha1.IdempotencyPolicy) {
		p.Spec.Selector.MatchLabels = map[string]string{"app": "deleted"}
		dropping(p)
	})
	w.seen("deleted", status.CurrentStatus)
	w.unreachable()
	w.remove(deleted)
	w.await("deleted", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonDeleting)
	w.seen("deleted", status.TerminatingStatus)
}
