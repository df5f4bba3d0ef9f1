// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject/injecttest"
	"github.com/idempotency-dev/operator/internal/webhook"
)

const namespace = "shop"

// bench is a kube-apiserver and a manager that serves its webhooks.
type bench struct {
	environment *envtest.Environment
	client      client.Client
	cache       client.Reader
	timer       *timer
	end         func() error
}

func start(ctx context.Context, c config) (*bench, error) {
	b := &bench{environment: &envtest.Environment{
		CRDDirectoryPaths: []string{c.crd}, ErrorIfCRDPathMissing: true,
		WebhookInstallOptions: envtest.WebhookInstallOptions{Paths: []string{c.webhooks}},
	}}
	config, err := b.environment.Start()
	if err != nil {
		return nil, fmt.Errorf("start kube-apiserver: %w", err)
	}
	config.QPS = -1 // as fast as the API server answers
	if err := b.serve(ctx, config); err != nil {
		return nil, errors.Join(err, b.stop())
	}
	return b, nil
}

// serve runs the manager, and makes the namespace.
func (b *bench) serve(ctx context.Context, config *rest.Config) error {
	scheme := runtime.NewScheme()
	err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme))
	if err != nil {
		return err
	}
	installed := b.environment.WebhookInstallOptions
	b.timer = &timer{Server: ctrlwebhook.NewServer(ctrlwebhook.Options{
		Host: installed.LocalServingHost, Port: installed.LocalServingPort, CertDir: installed.LocalServingCertDir,
	})}
	manager, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}, WebhookServer: b.timer})
	if err != nil {
		return fmt.Errorf("make manager: %w", err)
	}
	options := webhook.Options{SidecarImage: injecttest.DefaultImage, Registerer: prometheus.NewRegistry()}
	if err := webhook.Register(manager, options); err != nil { //nolint:contextcheck // it asks for an informer, which lives as long as the manager
		return err
	}
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(running) }()
	b.end = func() error { cancel(); return <-ended }
	b.cache = manager.GetCache()
	if b.client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	if err := poll(ctx, func() error { return b.timer.StartedChecker()(nil) }); err != nil {
		return fmt.Errorf("start webhook: %w", err)
	}
	return errors.Join(
		b.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{v1alpha1.InjectionLabel: v1alpha1.InjectionEnabled}}}),
		b.client.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}}),
	)
}

// stop leaves nothing running.
func (b *bench) stop() error {
	var err error
	if b.end != nil {
		err = b.end()
	}
	return errors.Join(err, b.environment.Stop())
}

// timer is a webhook server that notes how long each call for a pod took, from its header to the end of the answer.
type timer struct {
	ctrlwebhook.Server
	mu   sync.Mutex
	took []time.Duration
}

// Register serves hook at path.
func (t *timer) Register(path string, hook http.Handler) {
	if path != webhook.PodPath {
		t.Server.Register(path, hook)
		return
	}
	t.Server.Register(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		hook.ServeHTTP(w, r)
		took := time.Since(begin)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.took = append(t.took, took)
	}))
}

func (t *timer) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.took = nil
}

func (t *timer) sorted() []time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(slices.Values(t.took))
}

// parallel calls do for 0 to count-1, some at a time, and stops at the first error.
func parallel(ctx context.Context, count int, do func(context.Context, int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan int)
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for i := range work {
				if err := do(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := 0; i < count && ctx.Err() == nil; i++ {
		work <- i
	}
	close(work)
	group.Wait()
	return context.Cause(ctx)
}

// poll repeats check until it returns nil, or its last error after a minute.
func poll(ctx context.Context, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}
