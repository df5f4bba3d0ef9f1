// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject/injecttest"
)

// cluster is a kube-apiserver with our webhooks, as config/webhook configures them, and a foreign one. All tests share it, each in
// namespaces of its own. It is started by the first test that asks, so that fuzzing, in many processes, does without.
type cluster struct {
	environment *envtest.Environment
	config      *rest.Config
	client      client.Client
	// cache is what the handlers read.
	cache   client.Reader
	metrics *prometheus.Registry
	stop    func() error
}

var started struct {
	sync.Once
	cluster *cluster
	err     error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if started.cluster != nil {
		if err := started.cluster.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop cluster:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// theCluster returns the shared cluster.
func theCluster(t *testing.T) *cluster {
	t.Helper()
	started.Do(func() { started.cluster, started.err = startCluster() })
	if started.err != nil {
		t.Fatalf("start cluster: %v", started.err)
	}
	return started.cluster
}

func startCluster() (*cluster, error) {
	environment := &envtest.Environment{
		CRDDirectoryPaths:     []string{filepath.Join("..", "..", "config", "crd", "bases")},
		ErrorIfCRDPathMissing: true,
		WebhookInstallOptions: envtest.WebhookInstallOptions{
			Paths: []string{filepath.Join("..", "..", "config", "webhook", "manifests.yaml")},
			// The API server calls configurations in the order of their names, and ours is idempotency-operator.
			MutatingWebhooks: []*admissionregistrationv1.MutatingWebhookConfiguration{foreign("a-mesh"), foreign("z-mesh")},
		},
	}
	// Service accounts' tokens are mounted into containers by the API server, again after each webhook: as in a real cluster.
	environment.ControlPlane.GetAPIServer().Configure().Disable("disable-admission-plugins")
	config, err := environment.Start()
	if err != nil {
		return nil, err
	}
	c := &cluster{environment: environment, config: config, metrics: prometheus.NewRegistry()}
	if err := c.serve(); err != nil {
		return nil, errors.Join(err, environment.Stop())
	}
	return c, nil
}

// serve runs a manager with our webhooks until the cluster is stopped.
func (c *cluster) serve() error {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	installed := c.environment.WebhookInstallOptions
	manager, err := ctrl.NewManager(c.config, ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
		WebhookServer: ctrlwebhook.NewServer(ctrlwebhook.Options{
			Host: installed.LocalServingHost, Port: installed.LocalServingPort, CertDir: installed.LocalServingCertDir,
		}),
	})
	if err != nil {
		return err
	}
	if err := Register(manager, Options{SidecarImage: injecttest.DefaultImage, Namespace: "idempotency-system", Registerer: c.metrics}); err != nil {
		return err
	}
	manager.GetWebhookServer().Register(foreignPath, &admission.Webhook{Handler: admission.HandlerFunc(injectForeign)})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	c.cache = manager.GetCache()
	c.stop = func() error {
		cancel()
		return errors.Join(<-ended, c.environment.Stop())
	}
	if c.client, err = client.New(c.config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	listening := manager.GetWebhookServer().StartedChecker()
	return poll(ctx, func() error { return listening(nil) })
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

func eventually(t *testing.T, check func() error) {
	t.Helper()
	if err := poll(t.Context(), check); err != nil {
		t.Fatal(err)
	}
}

// namespace makes a namespace with a service account; labels say whether it is opted in, restricted, and who else injects.
func (c *cluster) namespace(t *testing.T, labels map[string]string) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-", Labels: labels}}
	if err := c.client.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "default"}}
	if err := c.client.Create(t.Context(), account); err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// optedIn are the labels of a namespace whose pods are injected.
func optedIn(more ...string) map[string]string {
	labels := map[string]string{v1alpha1.InjectionLabel: v1alpha1.InjectionEnabled}
	for i := 0; i < len(more); i += 2 {
		labels[more[i]] = more[i+1]
	}
	return labels
}

// policy creates p in the namespace and waits until the handlers know of it.
func (c *cluster) policy(t *testing.T, namespace string, p *v1alpha1.IdempotencyPolicy) {
	t.Helper()
	p.Namespace = namespace
	if err := c.client.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		return c.cache.Get(t.Context(), client.ObjectKeyFromObject(p), &v1alpha1.IdempotencyPolicy{})
	})
}

const (
	foreignPath  = "/foreign-v1-pod"
	foreignLabel = "test.example.com/foreign"
)

// foreign is the configuration of another injector, called in the order of its name, in namespaces that ask for it by that name.
func foreign(name string) *admissionregistrationv1.MutatingWebhookConfiguration {
	return &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name:                    name + ".example.com",
			AdmissionReviewVersions: []string{"v1"},
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy:           ptr.To(admissionregistrationv1.Fail),
			ReinvocationPolicy:      ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy),
			NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{foreignLabel: name}},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				Service: &admissionregistrationv1.ServiceReference{Namespace: "default", Name: "foreign", Path: ptr.To(foreignPath)},
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
		}},
	}
}

// injectForeign puts a native sidecar first and a container last, where they are not there yet, as service meshes do.
func injectForeign(_ context.Context, req admission.Request) admission.Response {
	pod := &corev1.Pod{}
	if err := json.Unmarshal(req.Object.Raw, pod); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	for _, c := range pod.Spec.InitContainers {
		if c.Name == "mesh" {
			return admission.Allowed("")
		}
	}
	pod.Spec.InitContainers = append([]corev1.Container{{
		Name: "mesh", Image: "mesh:1", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways),
		Ports: []corev1.ContainerPort{{Name: "mesh-metrics", ContainerPort: 15600}},
	}}, pod.Spec.InitContainers...)
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "shipper", Image: "shipper:1"})
	encoded, err := json.Marshal(pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(req.Object.Raw, encoded)
}
