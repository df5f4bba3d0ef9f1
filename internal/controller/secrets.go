// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/keystore/sealed"
)

// SecretError says that a Secret, or a key of it, is not there, or not what it should be.
type SecretError struct {
	// Reason is v1alpha1.ReasonSecretNotFound, v1alpha1.ReasonSecretKeyMissing or v1alpha1.ReasonEncryptionKeyInvalid.
	Reason string
	// Message names the Secret, the key and what to do. It holds nothing of what is in the Secret.
	Message string
}

func (e *SecretError) Error() string { return e.Message }

// DSNs reads the connection strings that refs, in namespace, refer to, each Secret once.
// It fails with a *SecretError and with what the API server says.
func (s *Stores) DSNs(ctx context.Context, namespace string, refs ...v1alpha1.SecretKeyRef) ([]string, error) {
	read := s.secretsIn(namespace)
	var dsns []string
	for _, ref := range refs {
		dsn, err := read.value(ctx, ref, "the connection string")
		if err != nil {
			return nil, err
		}
		dsns = append(dsns, strings.TrimSpace(dsn))
	}
	return dsns, nil
}

// checkKeys reads the key ring that ref, in namespace, refers to, and forgets it. It fails with a *SecretError and with what the API server says.
func (s *Stores) checkKeys(ctx context.Context, namespace string, ref v1alpha1.SecretKeyRef) error {
	read := s.secretsIn(namespace)
	text, err := read.value(ctx, ref, "the encryption keys")
	if err != nil {
		return err
	}
	if _, err := sealed.ParseRing([]byte(text)); err != nil {
		return &SecretError{v1alpha1.ReasonEncryptionKeyInvalid, fmt.Sprintf("Secret %q, key %q: %v", ref.Name, ref.Key, err)}
	}
	return nil
}

// secretReader reads Secrets of a namespace, each once.
type secretReader struct {
	client.Reader
	namespace string
	seen      map[string]*corev1.Secret
}

func (s *Stores) secretsIn(namespace string) *secretReader {
	return &secretReader{Reader: s.secrets, namespace: namespace, seen: map[string]*corev1.Secret{}}
}

// value is what ref refers to; what says what that should be.
func (r *secretReader) value(ctx context.Context, ref v1alpha1.SecretKeyRef, what string) (string, error) {
	if r.seen[ref.Name] == nil {
		secret := &corev1.Secret{}
		err := r.Get(ctx, types.NamespacedName{Namespace: r.namespace, Name: ref.Name}, secret)
		if apierrors.IsNotFound(err) {
			return "", &SecretError{v1alpha1.ReasonSecretNotFound, fmt.Sprintf("there is no Secret %q in this namespace: create it with %s under the key %q", ref.Name, what, ref.Key)}
		}
		if err != nil {
			return "", fmt.Errorf("get secret %s: %w", ref.Name, err)
		}
		r.seen[ref.Name] = secret
	}
	value := string(r.seen[ref.Name].Data[ref.Key])
	if strings.TrimSpace(value) == "" {
		return "", &SecretError{v1alpha1.ReasonSecretKeyMissing, fmt.Sprintf("Secret %q has no key %q, or nothing under it: put %s there", ref.Name, ref.Key, what)}
	}
	return value, nil
}
