// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/policy"
)

// hold puts the finalizer on a policy whose keyspace goes with it, and takes it off any other. It returns the policy as it is then.
// A policy that is not valid is left as it is: the validating webhook would refuse the change.
func (r *Policies) hold(ctx context.Context, stored *v1alpha1.IdempotencyPolicy, p *pass) (*v1alpha1.IdempotencyPolicy, error) {
	if p.invalid() {
		return stored, nil
	}
	held := stored.DeepCopy()
	if stored.Spec.Retention.DeletionPolicy == v1alpha1.DeletionDelete {
		controllerutil.AddFinalizer(held, v1alpha1.Finalizer)
	} else {
		controllerutil.RemoveFinalizer(held, v1alpha1.Finalizer)
	}
	if len(held.Finalizers) == len(stored.Finalizers) {
		return stored, nil
	}
	patch := client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, held, patch, client.FieldOwner(fieldOwner)); err != nil {
		return nil, fmt.Errorf("patch finalizers: %w", err)
	}
	return held, nil
}

// delete drops the keyspace of a policy that is being deleted, and lets the policy go. What keeps it from that is in the status.
func (r *Policies) delete(ctx context.Context, stored *v1alpha1.IdempotencyPolicy, p *pass) error {
	if !controllerutil.ContainsFinalizer(stored, v1alpha1.Finalizer) {
		return nil
	}
	kept, err := r.drop(ctx, p)
	if err == nil {
		return r.release(ctx, stored, kept)
	}
	if apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		return err
	}
	trouble := troubleOf(err)
	slog.WarnContext(ctx, "keyspace of deleted policy cannot be dropped", "namespace", stored.Namespace, "policy", stored.Name, "reason", trouble.reason, "error", err)
	message := fmt.Sprintf("The keyspace cannot be dropped. %s To let the policy go without that: kubectl annotate idempotencypolicy %s %s=true", trouble.say(err), stored.Name, v1alpha1.ReleaseAnnotation)
	p.set(v1alpha1.ConditionStoreHealthy, metav1.ConditionFalse, trouble.reason, message)
	p.set(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonDeleting, message)
	p.present(v1alpha1.ConditionReconciling, false, "", "")
	p.present(v1alpha1.ConditionStalled, false, "", "")
	p.status.ObservedGeneration = stored.Generation
	p.lookAgain(probeUnhealthy)
	return r.write(ctx, stored, p.status)
}

// drop drops the keyspace, or returns why it stays.
func (r *Policies) drop(ctx context.Context, p *pass) (kept string, err error) {
	if p.policy.Annotations[v1alpha1.ReleaseAnnotation] == "true" {
		return "the annotation " + v1alpha1.ReleaseAnnotation + " asks to leave it", nil
	}
	if p.policy.Spec.Retention.DeletionPolicy != v1alpha1.DeletionDelete {
		return "the deletion policy is no longer Delete", nil
	}
	keyspace := policy.Keyspace(p.policy)
	if other, err := r.sharing(ctx, p.policy, keyspace); err != nil || other != "" {
		return "policy " + other + " uses it, too", err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if p.policy.Spec.Store.Redis != nil {
		return r.dropRedis(ctx, p)
	}
	s, err := r.Stores.find(ctx, p.policy)
	var missing *SecretError
	switch {
	case errors.As(err, &missing):
		return "its Secret is gone: " + missing.Message, nil
	case err != nil:
		return "", err
	}
	// This fails when the keyspace is another policy's, which this one never owned.
	switch err := s.admin.EnsureKeyspace(ctx, keyspace, r.claim(p.policy)); {
	case errors.Is(err, keystore.ErrKeyspaceTaken):
		return "it belongs to another policy", nil
	case errors.Is(err, keystore.ErrSchemaOutdated):
		return "there are no tables to drop", nil
	case err != nil:
		return "", err
	}
	return "", s.drop(ctx, keyspace)
}

// sharing names another policy of this cluster with the same keyspace. It may be on another store: what is not dropped can be dropped by hand,
// and what was dropped cannot be had back.
func (r *Policies) sharing(ctx context.Context, p *v1alpha1.IdempotencyPolicy, keyspace string) (string, error) {
	all := &v1alpha1.IdempotencyPolicyList{}
	if err := r.Client.List(ctx, all); err != nil {
		return "", fmt.Errorf("list policies: %w", err)
	}
	for i := range all.Items {
		other := &all.Items[i]
		if other.UID != p.UID && other.DeletionTimestamp == nil && policy.Keyspace(other) == keyspace {
			return other.Namespace + "/" + other.Name, nil
		}
	}
	return "", nil
}

// release takes the finalizer off.
func (r *Policies) release(ctx context.Context, stored *v1alpha1.IdempotencyPolicy, kept string) error {
	changed := stored.DeepCopy()
	controllerutil.RemoveFinalizer(changed, v1alpha1.Finalizer)
	patch := client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, changed, patch, client.FieldOwner(fieldOwner)); err != nil {
		return client.IgnoreNotFound(err)
	}
	if kept != "" {
		r.Events.Eventf(stored, nil, corev1.EventTypeWarning, "KeyspaceRetained", "Delete", "The keyspace stays in the database: %s.", kept)
	}
	return nil
}
