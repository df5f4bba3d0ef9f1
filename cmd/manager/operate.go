// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientconfig "sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/certificate"
	"github.com/idempotency-dev/operator/internal/controller"
	podwebhook "github.com/idempotency-dev/operator/internal/webhook"
)

const (
	// name of the operator's lease and of its webhook configurations.
	name = "idempotency-operator"
	// webhookService is the Service of config/webhook, webhookCert the Secret that the replicas share.
	webhookService = "idempotency-operator-webhook"
	webhookCert    = "idempotency-operator-webhook-cert"
)

// +kubebuilder:rbac:groups="",namespace=idempotency-system,resources=secrets,verbs=create
// +kubebuilder:rbac:groups="",namespace=idempotency-system,resources=secrets,resourceNames=idempotency-operator-webhook-cert,verbs=list;watch;update
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=idempotency-system,resources=leases,verbs=create
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=idempotency-system,resources=leases,resourceNames=idempotency-operator,verbs=get;update
// +kubebuilder:rbac:groups="",namespace=idempotency-system,resources=events,verbs=create
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations;validatingwebhookconfigurations,resourceNames=idempotency-operator,verbs=list;watch;update
// +kubebuilder:rbac:groups="",resources=namespaces,resourceNames=kube-system,verbs=get
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// operate runs the operator until ctx ends, and then until its webhooks have no callers left.
func operate(ctx context.Context, c Config, out io.Writer) error {
	handler := slog.NewJSONHandler(out, &slog.HandlerOptions{Level: c.LogLevel})
	slog.SetDefault(slog.New(handler))
	ctrl.SetLogger(logr.FromSlogHandler(handler))
	klog.SetSlogLogger(slog.Default())
	slog.InfoContext(ctx, "manager starts", "version", version)

	kubeconfig, err := clientconfig.GetConfig()
	if err != nil {
		return fmt.Errorf("find cluster: %w", err)
	}
	server := &drainingServer{}
	ctx, cancel := server.outlive(ctx, c.DrainDelay)
	defer cancel()
	keeper, mgr, err := newManager(kubeconfig, c, server)
	if err != nil {
		return err
	}
	stores, err := assemble(ctx, mgr, keeper, c)
	if err != nil {
		return err
	}
	defer stores.Close()
	if err := mgr.AddReadyzCheck("draining", server.Check); err != nil {
		return fmt.Errorf("set up manager: %w", err)
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run manager: %w", err)
	}
	return nil
}

// newManager returns a manager that serves webhooks with the keeper's certificate, but does nothing yet. There is no keeper where the
// certificate comes from files.
func newManager(kubeconfig *rest.Config, c Config, server *drainingServer) (*certificate.Keeper, ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, nil, fmt.Errorf("build scheme: %w", err)
	}
	var keeper *certificate.Keeper
	server.Server = webhook.NewServer(webhook.Options{Port: c.WebhookPort, CertDir: c.WebhookCertDir, TLSOpts: []func(*tls.Config){func(t *tls.Config) {
		t.MinVersion = tls.VersionTLS13
		if c.WebhookCertDir == "" {
			t.GetCertificate = keeper.GetCertificate
		}
	}}})
	mgr, err := ctrl.NewManager(kubeconfig, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         cache.Options{ByObject: cached(c)},
		Client:                        client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}},
		LeaderElection:                c.LeaderElection,
		LeaderElectionID:              name,
		LeaderElectionNamespace:       c.Namespace,
		LeaderElectionReleaseOnCancel: true, // the process ends when the manager does
		HealthProbeBindAddress:        c.ProbeAddress,
		WebhookServer:                 server,
		Metrics: metricsserver.Options{
			BindAddress: c.MetricsAddress, SecureServing: true, FilterProvider: filters.WithAuthenticationAndAuthorization,
		},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("make manager: %w", err)
	}
	if c.WebhookCertDir != "" {
		return nil, mgr, nil
	}
	host := webhookService + "." + c.Namespace + ".svc"
	keeper = certificate.New(certificate.Config{
		Secret:   types.NamespacedName{Namespace: c.Namespace, Name: webhookCert},
		Names:    []string{host, host + ".cluster.local"},
		Webhooks: name,
	}, mgr.GetClient(), clock.RealClock{})
	return keeper, mgr, nil
}

// cached limits the cache to what controllers look at.
func cached(c Config) map[client.Object]cache.ByObject {
	objects := controller.CachedObjects()
	named := func(name string) fields.Selector { return fields.OneTermEqualSelector("metadata.name", name) }
	if c.WebhookCertDir != "" {
		return objects
	}
	objects[&corev1.Secret{}] = cache.ByObject{Namespaces: map[string]cache.Config{c.Namespace: {FieldSelector: named(webhookCert)}}}
	objects[&admissionv1.MutatingWebhookConfiguration{}] = cache.ByObject{Field: named(name)}
	objects[&admissionv1.ValidatingWebhookConfiguration{}] = cache.ByObject{Field: named(name)}
	return objects
}

// assemble adds everything that the manager runs.
func assemble(ctx context.Context, mgr ctrl.Manager, keeper *certificate.Keeper, c Config) (*controller.Stores, error) {
	cluster := &corev1.Namespace{}
	if err := mgr.GetAPIReader().Get(ctx, types.NamespacedName{Name: "kube-system"}, cluster); err != nil {
		return nil, fmt.Errorf("get namespace kube-system, whose uid names the cluster: %w", err)
	}
	stores := controller.NewStores(mgr.GetAPIReader(), clock.RealClock{})
	cleanup := controller.NewCleanup(mgr.GetClient(), mgr.GetEventRecorder(name), stores, clock.RealClock{})
	policies := &controller.Policies{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: mgr.GetEventRecorder(name), Stores: stores, Reports: cleanup, Clock: clock.RealClock{},
		SidecarImage: c.SidecarImage, Namespace: c.Namespace, ClusterID: string(cluster.UID),
	}
	wakes := []<-chan event.GenericEvent{cleanup.Wake()}
	if c.AskSidecars {
		policies.Sidecars = controller.NewSidecars()
		wakes = append(wakes, policies.Sidecars.Wake())
		if err := policies.Sidecars.SetupWithManager(mgr); err != nil {
			return nil, fmt.Errorf("set up manager: %w", err)
		}
	}
	clusterPolicies := &controller.ClusterPolicies{
		Client: mgr.GetClient(), Events: mgr.GetEventRecorder(name), Clock: clock.RealClock{},
		SidecarImage: c.SidecarImage, Namespace: c.Namespace, SecretsFrom: c.SecretSyncFrom,
	}
	for _, add := range []func() error{
		func() error { return policies.SetupWithManager(mgr, wakes...) },
		func() error { return clusterPolicies.SetupWithManager(mgr) }, //nolint:contextcheck // as below
		func() error { return cleanup.SetupWithManager(mgr) },
		func() error { return metrics.Registry.Register(cleanup.Metrics()) },
		func() error { return keep(mgr, keeper) },
		func() error { //nolint:contextcheck // it asks for an informer, which lives as long as the manager
			return podwebhook.Register(mgr, podwebhook.Options{SidecarImage: c.SidecarImage, Namespace: c.Namespace})
		},
		func() error { return mgr.AddHealthzCheck("ping", healthz.Ping) },
		func() error { return mgr.AddReadyzCheck("webhook", mgr.GetWebhookServer().StartedChecker()) },
		func() error { return mgr.AddReadyzCheck("caches", cachesSynced(mgr)) },
	} {
		if err := add(); err != nil {
			return nil, fmt.Errorf("set up manager: %w", err)
		}
	}
	return stores, nil
}

// keep makes the manager look after its certificate, and not ready before it has one.
func keep(mgr ctrl.Manager, keeper *certificate.Keeper) error {
	if keeper == nil {
		return nil // the server watches the files, and does not start without them
	}
	return errors.Join(keeper.SetupWithManager(mgr), mgr.AddReadyzCheck("certificate", keeper.Check))
}

// cachesSynced fails while a webhook could be answered from a cache that is not filled yet.
func cachesSynced(mgr ctrl.Manager) healthz.Checker {
	return func(req *http.Request) error {
		ctx, cancel := context.WithTimeout(req.Context(), time.Second)
		defer cancel()
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return errors.New("caches are being filled")
		}
		return nil
	}
}
