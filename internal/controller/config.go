// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/policy"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

const (
	// fieldOwner is the operator's name among the managers of a field.
	fieldOwner = "idempotency-operator"
	// managedByLabel marks what the operator made. Only ConfigMaps that carry it are cached.
	managedByLabel = "app.kubernetes.io/managed-by"
	configKey      = "config.json"
)

// configure writes the compiled policy for the sidecars, if it is not there as it should be. Of a policy that is not valid the last good one stays.
func (r *Policies) configure(ctx context.Context, p *pass) error {
	if p.invalid() {
		return nil
	}
	compiled, err := policy.Compile(p.policy)
	if err != nil {
		return fmt.Errorf("compile policy: %w", err)
	}
	text, err := proxyconfig.Encode(compiled)
	if err != nil {
		return fmt.Errorf("encode config: %w", err)
	}
	p.revision = proxyconfig.Revision(text)
	name := policy.ConfigMapName(p.policy)
	found := &corev1.ConfigMap{}
	err = r.Client.Get(ctx, types.NamespacedName{Namespace: p.policy.Namespace, Name: name}, found)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get configmap %s: %w", name, err)
	}
	if err == nil && found.Data[configKey] == string(text) && metav1.IsControlledBy(found, p.policy) {
		return nil
	}
	p.restored = err == nil
	wanted := corev1ac.ConfigMap(name, p.policy.Namespace).
		WithLabels(map[string]string{managedByLabel: fieldOwner}).
		WithData(map[string]string{configKey: string(text)}).
		WithOwnerReferences(metav1ac.OwnerReference().
			WithAPIVersion(v1alpha1.GroupVersion.String()).WithKind("IdempotencyPolicy").
			WithName(p.policy.Name).WithUID(p.policy.UID).WithController(true))
	err = r.Client.Apply(ctx, wanted, client.FieldOwner(fieldOwner), client.ForceOwnership)
	if err != nil && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return fmt.Errorf("apply configmap %s: %w", name, err)
	}
	return nil
}

// invalid: the policy cannot be compiled.
func (p *pass) invalid() bool {
	c := p.condition(v1alpha1.ConditionAccepted)
	return c != nil && c.Reason == v1alpha1.ReasonInvalid
}
