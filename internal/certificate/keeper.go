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
	// changedAnnotation on a webhook configuration is when an authority was added beside others.
	changedAnnotation = "idempotency.dev/ca-bundle-changed"
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
	// next takes the place of current once the trust in it has settled.
	next *pair
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
	var since time.Time
	stored, err := k.stored(ctx)
	if err == nil {
		since, err = k.trusted(ctx, stored)
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return reconcile.Result{RequeueAfter: 200 * time.Millisecond}, nil // another replica was faster
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: k.adopt(stored, since)}, nil
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

// trusted makes the webhook configurations trust the authority of p, and returns since when they may not have been seen to do so.
// One that does not exist yet is dealt with when it comes.
func (k *Keeper) trusted(ctx context.Context, p *pair) (since time.Time, err error) {
	key := types.NamespacedName{Name: k.config.Webhooks}
	mutating := &admissionv1.MutatingWebhookConfiguration{}
	if err := k.client.Get(ctx, key, mutating); client.IgnoreNotFound(err) != nil {
		return since, fmt.Errorf("get mutating webhook configuration %s: %w", key.Name, err)
	}
	var configs []*admissionv1.WebhookClientConfig
	for i := range mutating.Webhooks {
		configs = append(configs, &mutating.Webhooks[i].ClientConfig)
	}
	first, err := k.add(ctx, p, mutating, configs)
	if err != nil {
		return since, err
	}
	validating := &admissionv1.ValidatingWebhookConfiguration{}
	if err := k.client.Get(ctx, key, validating); client.IgnoreNotFound(err) != nil {
		return since, fmt.Errorf("get validating webhook configuration %s: %w", key.Name, err)
	}
	configs = nil
	for i := range validating.Webhooks {
		configs = append(configs, &validating.Webhooks[i].ClientConfig)
	}
	second, err := k.add(ctx, p, validating, configs)
	if second.After(first) {
		return second, err
	}
	return first, err
}

// add makes one configuration trust the authority of p, and returns when an authority was last added to it beside others.
func (k *Keeper) add(ctx context.Context, p *pair, object client.Object, configs []*admissionv1.WebhookClientConfig) (time.Time, error) {
	now, changed, beside := k.clock.Now(), false, false
	for _, config := range configs {
		bundle, added := trust(config.CABundle, p.authority, now)
		changed = changed || added
		beside = beside || (added && len(parseBundle(bundle)) > 1)
		config.CABundle = bundle
	}
	annotations := object.GetAnnotations()
	if beside {
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[changedAnnotation] = now.UTC().Format(time.RFC3339Nano)
		object.SetAnnotations(annotations)
	}
	since, err := time.Parse(time.RFC3339Nano, annotations[changedAnnotation])
	if err != nil {
		since = time.Time{} // never, or somebody's doing; then it is not recent
	}
	if !changed {
		return since, nil
	}
	return since, k.client.Update(ctx, object)
}

// adopt serves p as soon as the trust in it has settled, and returns when to look again.
func (k *Keeper) adopt(p *pair, since time.Time) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p.equal(k.current) {
		k.next = nil
		return recheck
	}
	if wait := min(settle-k.clock.Since(since), settle); wait > 0 {
		k.next = p
		return wait
	}
	k.current, k.next = p, nil
	return recheck
}
