// SPDX-License-Identifier: Apache-2.0

// Package certificate keeps the serving certificate of the operator's webhooks, without a moment at which a call fails for it.
//
// Every replica runs a Keeper. They share one Secret and serve from memory:
//
//   - A Secret that is deleted or damaged is written again from the memory of whichever replica notices first, so that nothing changes.
//   - A new certificate comes with a new authority. The webhook configurations trust it beside the old ones first; only when the API server
//     has had time to notice does a replica that serves the old certificate change over.
package certificate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// settle is how long the API server is given to notice a changed webhook configuration.
	settle = 10 * time.Second
	// recheck is how often the certificate's age is looked at.
	recheck = 6 * time.Hour
)

// Config of a Keeper.
type Config struct {
	// Secret that the replicas share.
	Secret types.NamespacedName
	// Names that clients know the server by; at least one.
	Names []string
	// Webhooks is the name of the MutatingWebhookConfiguration and of the ValidatingWebhookConfiguration.
	Webhooks string
}

// Keeper keeps a serving certificate. Its methods are safe for concurrent use.
type Keeper struct {
	config Config
	client client.Client
	clock  clock.Clock

	mu      sync.Mutex
	current *pair
	// next is trusted since nextSince, and takes the place of current once that has settled.
	next      *pair
	nextSince time.Time
}

// New returns a Keeper that has no certificate yet. c reads Secrets without a cache.
func New(config Config, c client.Client, clock clock.Clock) *Keeper {
	return &Keeper{config: config, client: c, clock: clock}
}

// SetupWithManager makes the manager run the Keeper, on every replica. The manager's cache may be limited to the objects that Config names.
func (k *Keeper) SetupWithManager(mgr ctrl.Manager) error {
	always := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: k.config.Secret}}
	})
	every := false
	return ctrl.NewControllerManagedBy(mgr).
		Named("certificate").
		WithOptions(controller.Options{NeedLeaderElection: &every}).
		Watches(&corev1.Secret{}, always).
		Watches(&admissionv1.MutatingWebhookConfiguration{}, always).
		Watches(&admissionv1.ValidatingWebhookConfiguration{}, always).
		Complete(k)
}

// GetCertificate is for tls.Config.
func (k *Keeper) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.current == nil {
		return nil, errors.New("no serving certificate yet")
	}
	return k.current.serving, nil
}

// Check fails unless a certificate is served that the webhook configurations trust and that is valid now.
func (k *Keeper) Check(*http.Request) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.current == nil {
		return errors.New("no serving certificate yet")
	}
	if k.current.left(k.clock.Now()) <= 0 {
		return errors.New("serving certificate has expired")
	}
	return nil
}

// Reconcile brings Secret, webhook configurations and memory in line.
func (k *Keeper) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if req.NamespacedName != k.config.Secret {
		return reconcile.Result{}, nil
	}
	stored, err := k.stored(ctx)
	if err == nil {
		err = k.trusted(ctx, stored)
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return reconcile.Result{RequeueAfter: 200 * time.Millisecond}, nil // another replica was faster
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: k.adopt(stored)}, nil
}

// stored returns the pair in the Secret; where it is missing, damaged or old, a better one is written first.
func (k *Keeper) stored(ctx context.Context) (*pair, error) {
	secret, now := &corev1.Secret{}, k.clock.Now()
	err := k.client.Get(ctx, k.config.Secret, secret)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return nil, fmt.Errorf("get secret %s: %w", k.config.Secret, err)
	}
	if p, err := parsePair(secret.Data, k.config.Names, now); err == nil && p.left(now) > renewal {
		return p, nil
	}
	p, err := k.replacement(now)
	if err != nil {
		return nil, err
	}
	secret.Data = p.data()
	if missing {
		secret.ObjectMeta = metav1.ObjectMeta{Namespace: k.config.Secret.Namespace, Name: k.config.Secret.Name}
		secret.Type = corev1.SecretTypeTLS
		return p, k.client.Create(ctx, secret)
	}
	return p, k.client.Update(ctx, secret)
}

// replacement is the pair in memory, or a new one.
func (k *Keeper) replacement(now time.Time) (*pair, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range []*pair{k.next, k.current} {
		if p != nil && p.left(now) > renewal {
			return p, nil
		}
	}
	return newPair(k.config.Names, now)
}

// trusted makes the webhook configurations trust the authority of p. One that does not exist yet is dealt with when it comes.
func (k *Keeper) trusted(ctx context.Context, p *pair) error {
	key, now := types.NamespacedName{Name: k.config.Webhooks}, k.clock.Now()
	mutating := &admissionv1.MutatingWebhookConfiguration{}
	if err := k.client.Get(ctx, key, mutating); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get mutating webhook configuration %s: %w", key.Name, err)
	}
	changed := false
	for i := range mutating.Webhooks {
		changed = addTo(&mutating.Webhooks[i].ClientConfig, p, now) || changed
	}
	if changed {
		if err := k.client.Update(ctx, mutating); err != nil {
			return err
		}
	}
	validating := &admissionv1.ValidatingWebhookConfiguration{}
	if err := k.client.Get(ctx, key, validating); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get validating webhook configuration %s: %w", key.Name, err)
	}
	changed = false
	for i := range validating.Webhooks {
		changed = addTo(&validating.Webhooks[i].ClientConfig, p, now) || changed
	}
	if changed {
		return k.client.Update(ctx, validating)
	}
	return nil
}

func addTo(config *admissionv1.WebhookClientConfig, p *pair, now time.Time) (changed bool) {
	config.CABundle, changed = trust(config.CABundle, p.authority, now)
	return changed
}

// adopt serves p, at once or as soon as the trust in it has settled, and returns when to look again.
func (k *Keeper) adopt(p *pair) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.clock.Now()
	switch {
	case p.equal(k.current):
		k.next = nil
		return recheck
	case k.current == nil || k.current.left(now) <= 0:
		k.current, k.next = p, nil
		return recheck
	case !p.equal(k.next):
		k.next, k.nextSince = p, now
		return settle
	}
	if wait := settle - now.Sub(k.nextSince); wait > 0 {
		return wait
	}
	k.current, k.next = p, nil
	return recheck
}
