// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/policy"
)

const (
	// sourceEvery is how often the Secret that is copied is read again, since Secrets are not watched.
	sourceEvery = 30 * time.Second
	// copyTrusted is how long a copy is believed to be as it was made. One that a policy misses is looked at at once.
	copyTrusted = 10 * time.Minute
)

// copied is what is copied of a Secret.
type copied struct {
	// name of the copies.
	name string
	data map[string][]byte
}

// sum tells contents apart without keeping them.
func (c *copied) sum() [sha256.Size]byte {
	h := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(c.data)) {
		fmt.Fprintf(h, "%d %s %d ", len(key), key, len(c.data[key]))
		h.Write(c.data[key])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// source reads the keys that the policy's store names from the Secret that is to be copied; nil where none is. It fails with a *SecretError.
func (r *ClusterPolicies) source(ctx context.Context, p *clusterPass) (*copied, error) {
	from := p.policy.Spec.SecretSyncFrom
	if from == nil {
		return nil, nil //nolint:nilnil // there is nothing to copy
	}
	if from.Namespace != r.SecretsFrom {
		return nil, &SecretError{v1alpha1.ReasonSecretSyncNotAllowed, fmt.Sprintf("the operator may not copy Secrets from namespace %q: run it with --secret-sync-from=%s, and the rights of config/secretsync, or remove secretSyncFrom", from.Namespace, from.Namespace)}
	}
	secret := &corev1.Secret{}
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: from.Namespace, Name: from.Name}, secret)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get secret %s of namespace %s: %w", from.Name, from.Namespace, err)
	}
	made := policy.InNamespace(p.policy, from.Namespace)
	policy.Default(made)
	refs := []v1alpha1.SecretKeyRef{policy.SidecarDSN(made), policy.AdminDSN(made)}
	if apierrors.IsNotFound(err) {
		p.lookAgain(probeUnhealthy)
		return nil, &SecretError{v1alpha1.ReasonSecretNotFound, fmt.Sprintf("there is no Secret %q in namespace %s, which is to be copied: create it with the connection string under the key %q", from.Name, from.Namespace, refs[0].Key)}
	}
	if keys := made.Spec.Store.EncryptionKeySecretRef; keys != nil && keys.Name == refs[0].Name {
		refs = append(refs, v1alpha1.SecretKeyRef(*keys))
	}
	c := &copied{name: refs[0].Name, data: map[string][]byte{}}
	for _, ref := range refs {
		value := secret.Data[ref.Key]
		if len(value) == 0 {
			p.lookAgain(probeUnhealthy)
			return nil, &SecretError{v1alpha1.ReasonSecretKeyMissing, fmt.Sprintf("Secret %q of namespace %s has no key %q, which is to be copied, or nothing under it", from.Name, from.Namespace, ref.Key)}
		}
		c.data[ref.Key] = value
	}
	p.lookAgain(sourceEvery)
	return c, nil
}

// copySecret gives every selected namespace that is opted in a copy. It fails with all that should be tried again.
func (r *ClusterPolicies) copySecret(ctx context.Context, p *clusterPass) error {
	if p.secret == nil {
		return nil
	}
	sum := p.secret.sum()
	errs := make([]error, len(p.places))
	each(len(p.places), func(i int) {
		at := &p.places[i]
		if at.reason != "" || at.made == nil || at.made.DeletionTimestamp != nil || !at.enabled {
			return
		}
		made := copyOf{sum: sum, owner: at.made.UID}
		if !at.missesSecret() && r.copies.trusted(p.policy.Name, at.namespace, made, r.Clock.Now()) {
			return
		}
		if errs[i] = r.copyTo(ctx, p.secret, at.made); errs[i] != nil {
			if !outdated(errs[i]) {
				at.reason, at.message = v1alpha1.ReasonApplyFailed, errs[i].Error()
			}
			return
		}
		r.copies.trust(p.policy.Name, at.namespace, made, r.Clock.Now())
	})
	return p.refused(errs)
}

// missesSecret: the namespace's policy says so.
func (at *place) missesSecret() bool {
	c := at.condition(v1alpha1.ConditionAccepted)
	return c != nil && (c.Reason == v1alpha1.ReasonSecretNotFound || c.Reason == v1alpha1.ReasonSecretKeyMissing)
}

// copyTo writes the Secret beside made, which owns it, so that it goes when made does. A Secret of that name which is no copy is left alone, and used.
func (r *ClusterPolicies) copyTo(ctx context.Context, c *copied, made *v1alpha1.IdempotencyPolicy) error {
	wanted := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: made.Namespace, Name: c.name,
			Labels: map[string]string{managedByLabel: fieldOwner, v1alpha1.ClusterPolicyLabel: made.Labels[v1alpha1.ClusterPolicyLabel]},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "IdempotencyPolicy", Name: made.Name, UID: made.UID, Controller: ptr.To(true),
			}},
		},
		Data: c.data,
	}
	found := &corev1.Secret{}
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(wanted), found)
	switch {
	case apierrors.IsNotFound(err):
		if err := r.Client.Create(ctx, wanted, client.FieldOwner(fieldOwner)); err != nil {
			return fmt.Errorf("create secret %s: %w", wanted.Name, err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("get secret %s: %w", wanted.Name, err)
	case found.Labels[v1alpha1.ClusterPolicyLabel] != wanted.Labels[v1alpha1.ClusterPolicyLabel]:
		return nil
	}
	changed := found.DeepCopy()
	changed.OwnerReferences, changed.Data = wanted.OwnerReferences, wanted.Data
	if equality.Semantic.DeepEqual(found, changed) {
		return nil
	}
	if err := r.Client.Update(ctx, changed, client.FieldOwner(fieldOwner)); err != nil {
		return fmt.Errorf("update secret %s: %w", wanted.Name, err)
	}
	return nil
}

// copies remembers which copies were made, so that they are not all read again at every look. The zero copies is empty.
type copies struct {
	mu   sync.Mutex
	made map[string]map[string]copyOf // by cluster policy and namespace
}

// copyOf is what was copied, for which policy.
type copyOf struct {
	sum   [sha256.Size]byte
	owner types.UID
	at    time.Time
}

func (c *copies) trusted(cluster, namespace string, wanted copyOf, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.made[cluster][namespace]
	return last.sum == wanted.sum && last.owner == wanted.owner && now.Sub(last.at) < copyTrusted
}

func (c *copies) trust(cluster, namespace string, made copyOf, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil {
		c.made = map[string]map[string]copyOf{}
	}
	if c.made[cluster] == nil {
		c.made[cluster] = map[string]copyOf{}
	}
	made.at = now
	c.made[cluster][namespace] = made
}

func (c *copies) forget(cluster string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.made, cluster)
}
