// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject"
	"github.com/idempotency-dev/operator/internal/inject/injecttest"
)

// TestFailSafe: whatever is wrong with the operator, pods that are none of ours are created, those that a policy selects too, and enforced ones
// are not.
func TestFailSafe(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	o := newOperator(t)
	good, expired := o.certificate(t, time.Hour), o.certificate(t, -time.Minute)
	well := newDesk(t, holding(injecttest.Policy()), false)
	for _, row := range []struct {
		why  string
		now  condition
		says string // to the creator of an enforced pod
		// sidecar: selected pods get it after all.
		sidecar bool
	}{
		{"the operator is well", condition{handler: admit(well), certificate: good}, "", true},
		{"nothing listens", condition{}, "connection refused", false},
		{"it does not answer", condition{handler: hang(), certificate: good}, "context deadline exceeded", false},
		{"its certificate has expired", condition{handler: admit(well), certificate: expired}, "certificate has expired", false},
		{"its handler panics", condition{handler: admit(newDesk(t, store{list: func(context.Context) ([]v1alpha1.IdempotencyPolicy, error) { panic("bug") }}, false)), certificate: good}, "panic", false},
		{"the server's own code panics", condition{handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), certificate: good}, "EOF", false},
		{"its policies are not there yet", condition{handler: admit(newDesk(t, store{list: func(ctx context.Context) ([]v1alpha1.IdempotencyPolicy, error) { <-ctx.Done(); return nil, ctx.Err() }}, false)), certificate: good}, "deadline", false},
		{"it answers nonsense", condition{handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }), certificate: good}, "invalid webhook response", false},
		{"it lets everything through", condition{handler: mute(), certificate: good}, "idempotency-operator-enforce", false},
	} {
		t.Run(row.why, func(t *testing.T) {
			o.become(t, row.now)
			o.check(t, row.sidecar, row.says)
		})
	}
	t.Run("its webhook configuration is gone", func(t *testing.T) {
		o.become(t, condition{})
		if err := o.client.Delete(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "idempotency-operator"}}); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			err := o.client.Create(t.Context(), podFor("open", "true"), client.DryRunAll)
			if err == nil || !strings.Contains(err.Error(), "idempotency-operator-enforce") {
				return fmt.Errorf("the answer is not yet the guard's own: %w", err)
			}
			return nil
		})
		o.check(t, false, "may not run without its sidecar")
	})
}

// condition is what state the operator is in. Without a handler nothing listens.
type condition struct {
	handler     http.Handler
	certificate *tls.Certificate
}

func admit(d desk) http.Handler {
	enforced := *d.handler
	enforced.enforce = true
	mux := http.NewServeMux()
	mux.Handle(PodPath, &admission.Webhook{Handler: d.handler})
	mux.Handle(EnforcePath, &admission.Webhook{Handler: &enforced})
	return mux
}

func hang() http.Handler {
	return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
}

func mute() http.Handler {
	return &admission.Webhook{Handler: admission.HandlerFunc(func(context.Context, admission.Request) admission.Response { return admission.Allowed("") })}
}

// operator is a kube-apiserver with our configuration, and a server in the operator's place.
type operator struct {
	client  client.Client
	address string
	server  *http.Server
	ca      *x509.Certificate
	key     *ecdsa.PrivateKey
}

func newOperator(t *testing.T) *operator {
	t.Helper()
	environment := &envtest.Environment{WebhookInstallOptions: envtest.WebhookInstallOptions{Paths: []string{filepath.Join("..", "..", "config", "webhook", "manifests.yaml")}}}
	config, err := environment.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := environment.Stop(); err != nil {
			t.Error(err)
		}
	})
	o := &operator{}
	if o.client, err = client.New(config, client.Options{}); err != nil {
		t.Fatal(err)
	}
	o.authority(t)
	installed := environment.WebhookInstallOptions
	o.address = net.JoinHostPort(installed.LocalServingHost, fmt.Sprint(installed.LocalServingPort))
	t.Cleanup(func() { o.become(t, condition{}) })
	for name, labels := range map[string]map[string]string{"shut": nil, "open": optedIn()} {
		for _, object := range []client.Object{
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}},
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "default"}},
		} {
			if err := o.client.Create(t.Context(), object); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := o.client.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "default"}}); err != nil {
		t.Fatal(err)
	}
	o.guard(t)
	return o
}

// guard installs config/admission, and waits until the API server heeds it: an operator that lets everything through is not enough.
func (o *operator) guard(t *testing.T) {
	t.Helper()
	file, err := os.Open(filepath.Join("..", "..", "config", "admission", "enforce.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	documents := yaml.NewYAMLOrJSONDecoder(file, 4096)
	policy, binding := &admissionregistrationv1.ValidatingAdmissionPolicy{}, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}
	if err := errors.Join(documents.Decode(policy), documents.Decode(binding)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(o.client.Create(t.Context(), policy), o.client.Create(t.Context(), binding)); err != nil {
		t.Fatal(err)
	}
	o.become(t, condition{handler: mute(), certificate: o.certificate(t, time.Hour)})
	eventually(t, func() error {
		if err := o.client.Create(t.Context(), podFor("open", "true"), client.DryRunAll); err == nil || !strings.Contains(err.Error(), policy.Name) {
			return fmt.Errorf("the guard does not act: %w", err)
		}
		return nil
	})
	if policy.Status.TypeChecking != nil && len(policy.Status.TypeChecking.ExpressionWarnings) > 0 {
		t.Errorf("the guard's expressions: %v", policy.Status.TypeChecking.ExpressionWarnings)
	}
}

func podFor(namespace, enforce string) *corev1.Pod {
	pod := replicaSetPod()
	pod.Namespace, pod.OwnerReferences = namespace, nil
	if enforce != "" {
		pod.Labels[v1alpha1.EnforceLabel] = enforce
	}
	return pod
}

// check creates one pod of each kind.
func (o *operator) check(t *testing.T, sidecar bool, says string) {
	t.Helper()
	for _, namespace := range []string{"shut", metav1.NamespaceSystem} {
		for _, enforce := range []string{"", "true"} { // the label means nothing where nobody opted in
			pod := podFor(namespace, enforce)
			if err := o.client.Create(t.Context(), pod); err != nil || len(pod.Spec.InitContainers) != 0 {
				t.Errorf("a pod of namespace %s, enforced %q: %v, %d init containers", namespace, enforce, err, len(pod.Spec.InitContainers))
			}
		}
	}
	out := podFor("open", "")
	out.Labels[v1alpha1.InjectionLabel] = v1alpha1.InjectionDisabled
	if err := o.client.Create(t.Context(), out); err != nil {
		t.Errorf("a pod that opted out: %v", err)
	}
	selected := podFor("open", "")
	if err := o.client.Create(t.Context(), selected); err != nil || (len(selected.Spec.InitContainers) == 1) != sidecar {
		t.Errorf("a selected pod: %v, %d init containers", err, len(selected.Spec.InitContainers))
	}
	enforced := podFor("open", "true")
	err := o.client.Create(t.Context(), enforced)
	switch {
	case sidecar:
		if _, carries := inject.TrafficOf(enforced); err != nil || !carries {
			t.Errorf("an enforced pod: %v, sidecar %v", err, carries)
		}
	case err == nil || !strings.Contains(err.Error(), says):
		t.Errorf("an enforced pod was answered %v, want a refusal that says %q", err, says)
	}
}

// authority makes one that the webhook configuration trusts.
func (o *operator) authority(t *testing.T) {
	t.Helper()
	var err error
	if o.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, o.key.Public(), o.key)
	if err != nil {
		t.Fatal(err)
	}
	if o.ca, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	hooks := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := o.client.Get(t.Context(), client.ObjectKey{Name: "idempotency-operator"}, hooks); err != nil {
		t.Fatal(err)
	}
	for i := range hooks.Webhooks {
		hooks.Webhooks[i].ClientConfig.CABundle = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	if err := o.client.Update(t.Context(), hooks); err != nil {
		t.Fatal(err)
	}
}

// certificate is one that ends after left.
func (o *operator) certificate(t *testing.T, left time.Duration) *tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(left),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, o.ca, o.key.Public(), o.key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: o.key}
}

// become puts the operator into a condition. Every call comes over a connection of its own, so that none is left of the condition before.
func (o *operator) become(t *testing.T, c condition) {
	t.Helper()
	if o.server != nil {
		_ = o.server.Close()
		o.server = nil
	}
	if c.handler == nil {
		return
	}
	listener, err := tls.Listen("tcp", o.address, &tls.Config{Certificates: []tls.Certificate{*c.certificate}, MinVersion: tls.VersionTLS13})
	if err != nil {
		t.Fatal(err)
	}
	o.server = &http.Server{Handler: c.handler, ErrorLog: log.New(io.Discard, "", 0)}
	o.server.SetKeepAlivesEnabled(false)
	go func(server *http.Server) { _ = server.Serve(listener) }(o.server)
}
