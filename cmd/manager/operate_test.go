// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	kubeyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	podwebhook "github.com/idempotency-dev/operator/internal/webhook"
)

// installed is what kubectl kustomize makes of a directory of config/.
func installed(t *testing.T, directory string) []*unstructured.Unstructured {
	t.Helper()
	kubectl := filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl")
	out, err := exec.CommandContext(t.Context(), kubectl, "kustomize", filepath.Join("..", "..", "config", directory)).Output()
	if err != nil {
		t.Fatalf("kubectl kustomize config/%s: %v", directory, err)
	}
	var objects []*unstructured.Unstructured
	for decoder := kubeyaml.NewYAMLOrJSONDecoder(bytes.NewReader(out), 4096); ; {
		o := &unstructured.Unstructured{}
		switch err := decoder.Decode(o); {
		case errors.Is(err, io.EOF):
			return objects
		case err != nil:
			t.Fatal(err)
		}
		objects = append(objects, o)
	}
}

// startAPI starts an API server with everything of config/default in it, and returns its client and the path of a kubeconfig that logs in as
// the operator's service account. The webhooks are not reached there: nothing routes to Services.
func startAPI(t *testing.T, change ...func(*envtest.APIServer)) (client.Client, string) {
	t.Helper()
	admin, config := startServer(t, change...)
	account := &corev1.ServiceAccount{}
	account.Namespace, account.Name = "idempotency-system", name
	token := &authenticationv1.TokenRequest{}
	if err := admin.SubResource("token").Create(t.Context(), account, token); err != nil {
		t.Fatalf("log in as the operator: %v", err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"test": {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"operator": {Token: token.Status.Token}},
		Contexts:       map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: "operator"}},
		CurrentContext: "test",
	}, kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return admin, kubeconfig
}

// startServer does the first half of that, and returns how its administrator logs in.
func startServer(t *testing.T, change ...func(*envtest.APIServer)) (client.Client, *rest.Config) {
	t.Helper()
	environment := &envtest.Environment{}
	for _, f := range change {
		f(environment.ControlPlane.GetAPIServer())
	}
	config, err := environment.Start()
	if err != nil {
		t.Fatalf("start kube-apiserver and etcd: %v", err)
	}
	t.Cleanup(func() { _ = environment.Stop() })
	scheme := clientgoscheme.Scheme
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	admin, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range installed(t, "default") {
		if err := admin.Create(t.Context(), o); err != nil {
			t.Fatalf("create %s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
	return admin, config
}

// transcript is a buffer for several writers.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *transcript) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *transcript) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// ready asks a probe.
func ready(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		return fmt.Errorf("%s: %s: %s", url, response.Status, text)
	}
	return nil
}

// wait polls until check returns nil, as long as the program runs.
func wait(t *testing.T, ended <-chan error, check func() error) {
	t.Helper()
	deadline := time.After(60 * time.Second)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case ended := <-ended:
			t.Fatalf("the operator ended with %v", ended)
		case <-deadline:
			t.Fatalf("after 60s: %v", err)
		case <-tick.C:
		}
	}
}

// freePort is a port that nobody listened on a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// TestManifests shows that what is written by hand in config/ fits the program and itself.
func TestManifests(t *testing.T) {
	var deployment appsv1.Deployment
	var service corev1.Service
	var mutating admissionv1.MutatingWebhookConfiguration
	var validating admissionv1.ValidatingWebhookConfiguration
	find(t, &deployment, "Deployment", name)
	find(t, &service, "Service", webhookService)
	find(t, &mutating, "MutatingWebhookConfiguration", name)
	find(t, &validating, "ValidatingWebhookConfiguration", name)

	pod := labels.Set(deployment.Spec.Template.Labels)
	if !labels.SelectorFromSet(service.Spec.Selector).Matches(pod) || !labels.SelectorFromSet(deployment.Spec.Selector.MatchLabels).Matches(pod) {
		t.Errorf("the pods' labels %v are selected by Service %v and Deployment %v", pod, service.Spec.Selector, deployment.Spec.Selector.MatchLabels)
	}
	ports := map[string]int32{}
	for _, port := range deployment.Spec.Template.Spec.Containers[0].Ports {
		ports[port.Name] = port.ContainerPort
	}
	args := deployment.Spec.Template.Spec.Containers[0].Args
	config, err := parse(args, func(string) string { return "" })
	if err != nil {
		t.Fatalf("the program refuses the Deployment's arguments: %v", err)
	}
	if ports["webhook"] != int32(config.WebhookPort) || config.MetricsAddress != fmt.Sprintf(":%d", ports["metrics"]) || config.ProbeAddress != fmt.Sprintf(":%d", ports["probes"]) {
		t.Errorf("ports %v, configuration %+v", ports, config)
	}
	paths := map[string]string{"inject.idempotency.dev": podwebhook.PodPath, "enforce.idempotency.dev": podwebhook.EnforcePath, "policy.idempotency.dev": podwebhook.PolicyPath, "clusterpolicy.idempotency.dev": podwebhook.ClusterPolicyPath}
	check := func(webhook string, target *admissionv1.ServiceReference) {
		if target.Name != service.Name || target.Namespace != service.Namespace || *target.Path != paths[webhook] || *target.Port != service.Spec.Ports[0].Port {
			t.Errorf("webhook %s is sent to %+v", webhook, target)
		}
		delete(paths, webhook)
	}
	for _, w := range mutating.Webhooks {
		check(w.Name, w.ClientConfig.Service)
	}
	for _, w := range validating.Webhooks {
		check(w.Name, w.ClientConfig.Service)
	}
	if len(paths) > 0 {
		t.Errorf("nothing is sent to %v", paths)
	}
}

// find decodes the object of config/default with that kind and name.
func find[T any](t *testing.T, into *T, kind, name string) {
	t.Helper()
	for _, o := range installed(t, "default") {
		if o.GetKind() == kind && o.GetName() == name {
			text, err := o.MarshalJSON()
			if err == nil {
				err = kubeyaml.UnmarshalStrict(text, into)
			}
			if err != nil {
				t.Fatalf("decode %s %s: %v", kind, name, err)
			}
			return
		}
	}
	t.Fatalf("config/default has no %s %s", kind, name)
}

// TestLinks keeps the sidecar's code out of the operator.
func TestLinks(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for dependency := range strings.Lines(string(out)) {
		if strings.TrimSpace(dependency) == "github.com/idempotency-dev/operator/internal/proxy" {
			t.Error("cmd/manager links internal/proxy")
		}
	}
}
