// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

// write patches the status if it differs from what stored has, and tells of conditions that turned.
func (r *Policies) write(ctx context.Context, stored *v1alpha1.IdempotencyPolicy, status v1alpha1.IdempotencyPolicyStatus) error {
	if equality.Semantic.DeepEqual(stored.Status, status) {
		return nil
	}
	changed := stored.DeepCopy()
	changed.Status = status
	// The lock keeps a pass that read an old object, or a manager that is no longer the leader, from undoing what a later one wrote.
	patch := client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Status().Patch(ctx, changed, patch, client.FieldOwner(fieldOwner)); err != nil {
		return fmt.Errorf("patch status: %w", err)
	}
	tell(r.Events, stored, stored.Status.Conditions, status.Conditions)
	return nil
}

// tell records an event for each condition that became False, changed its reason, or recovered.
func tell(recorder events.EventRecorder, about runtime.Object, before, now []metav1.Condition) {
	for i := range now {
		tellOne(recorder, about, meta.FindStatusCondition(before, now[i].Type), &now[i])
	}
}

func tellOne(recorder events.EventRecorder, about runtime.Object, before, now *metav1.Condition) {
	if before != nil && before.Status == now.Status && before.Reason == now.Reason {
		return
	}
	switch {
	case now.Type == v1alpha1.ConditionReady || now.Type == v1alpha1.ConditionReconciling || now.Type == v1alpha1.ConditionStalled:
		// They repeat the others.
	case now.Status == metav1.ConditionFalse:
		recorder.Eventf(about, nil, corev1.EventTypeWarning, now.Reason, now.Type, "%s", now.Message)
	case now.Status == metav1.ConditionTrue && before != nil && before.Status == metav1.ConditionFalse:
		recorder.Eventf(about, nil, corev1.EventTypeNormal, now.Reason, now.Type, "%s", now.Message)
	}
}
