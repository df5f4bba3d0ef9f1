// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
)

// issuer stands for whoever renews the files.
type issuer struct {
	t     *testing.T
	key   *ecdsa.PrivateKey
	ca    *x509.Certificate
	roots *x509.CertPool
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{t: t, roots: x509.NewCertPool()}
	var err error
	if i.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, i.key.Public(), i.key)
	if err != nil {
		t.Fatal(err)
	}
	if i.ca, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	i.roots.AddCert(i.ca)
	return i
}

// issue writes a certificate into dir as the kubelet does: both files at once, by a link that is turned.
func (i *issuer) issue(dir string, serial int64) {
	i.t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"hook"}}
	der, err := x509.CreateCertificate(rand.Reader, template, i.ca, i.key.Public(), i.key)
	if err != nil {
		i.t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(i.key)
	if err != nil {
		i.t.Fatal(err)
	}
	version := fmt.Sprintf("..version%d", serial)
	must := func(err error) {
		i.t.Helper()
		if err != nil {
			i.t.Fatal(err)
		}
	}
	must(os.Mkdir(filepath.Join(dir, version), 0o700))
	must(os.WriteFile(filepath.Join(dir, version, "tls.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(os.WriteFile(filepath.Join(dir, version, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
	must(os.Symlink(version, filepath.Join(dir, "..data_tmp")))
	must(os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	for _, file := range []string{"tls.crt", "tls.key"} {
		if err := os.Symlink(filepath.Join("..data", file), filepath.Join(dir, file)); err != nil && !os.IsExist(err) {
			i.t.Fatal(err)
		}
	}
}

// serial is that of the certificate which is served at the port, and trusted.
func (i *issuer) serial(port string) (int64, error) {
	ctx, cancel := context.WithTimeout(i.t.Context(), 5*time.Second)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: i.roots, ServerName: "hook", MinVersion: tls.VersionTLS13}}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.Int64(), nil
}

// TestCertificateFiles: the manager serves what it is given, turns to a renewed one without a call that fails, and has nothing that would make
// certificates or write what to trust.
func TestCertificateFiles(t *testing.T) {
	_, kubeconfig := startAPI(t)
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	files, dir, port := newIssuer(t), t.TempDir(), freePort(t)
	files.issue(dir, 2)
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	server := &drainingServer{}
	keeper, mgr, err := newManager(config, Config{
		Namespace: "idempotency-system", MetricsAddress: "0", ProbeAddress: "0", WebhookPort: number, WebhookCertDir: dir,
	}, server)
	if err != nil || keeper != nil || keep(mgr, keeper) != nil {
		t.Fatalf("keeper %v, %v", keeper, err)
	}
	mgr.GetWebhookServer().Register("/", http.NotFoundHandler())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	wait(t, ended, func() error { return server.StartedChecker()(nil) })
	if serial, err := files.serial(port); err != nil || serial != 2 {
		t.Fatalf("serves %d, %v", serial, err)
	}
	files.issue(dir, 3)
	wait(t, ended, func() error {
		serial, err := files.serial(port)
		if err != nil {
			t.Fatalf("a call failed while the certificate was renewed: %v", err)
		}
		if serial != 3 {
			return fmt.Errorf("serves certificate %d", serial)
		}
		return nil
	})
}

// TestCertManagerOverlay: what cert-manager is asked for is what the Deployment mounts, the program reads, and the webhooks trust.
func TestCertManagerOverlay(t *testing.T) {
	objects := map[string]*unstructured.Unstructured{}
	for _, o := range installed(t, "certmanager") {
		objects[o.GetKind()+"/"+o.GetName()] = o
	}
	const certificate = "idempotency-operator-webhook"
	issued := objects["Certificate/"+certificate]
	if issued == nil {
		t.Fatal("there is no Certificate")
	}
	secret, _, _ := unstructured.NestedString(issued.Object, "spec", "secretName")
	names, _, _ := unstructured.NestedStringSlice(issued.Object, "spec", "dnsNames")
	if !slices.Contains(names, webhookService+"."+issued.GetNamespace()+".svc") {
		t.Errorf("the certificate is for %v", names)
	}
	var deployment appsv1.Deployment
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objects["Deployment/"+name].Object, &deployment); err != nil {
		t.Fatal(err)
	}
	spec := deployment.Spec.Template.Spec
	container := spec.Containers[0]
	if len(spec.Volumes) != 1 || spec.Volumes[0].Secret.SecretName != secret || len(container.VolumeMounts) != 1 || container.VolumeMounts[0].Name != spec.Volumes[0].Name {
		t.Errorf("volumes %v, mounts %v, want Secret %s", spec.Volumes, container.VolumeMounts, secret)
	}
	config, err := parse(container.Args, func(name string) string {
		for _, v := range container.Env {
			if v.Name == name {
				return v.Value
			}
		}
		return ""
	})
	if err != nil || config.WebhookCertDir == "" || config.WebhookCertDir != container.VolumeMounts[0].MountPath {
		t.Errorf("the program reads %q, %v", config.WebhookCertDir, err)
	}
	for _, kind := range []string{"Mutating", "Validating"} {
		hooks := objects[kind+"WebhookConfiguration/"+name]
		if got := hooks.GetAnnotations()["cert-manager.io/inject-ca-from"]; got != issued.GetNamespace()+"/"+certificate {
			t.Errorf("the %s webhooks trust %q", kind, got)
		}
	}
	if issuer := objects["Issuer/idempotency-operator-ca"]; issuer == nil || objects["Certificate/idempotency-operator-ca"] == nil {
		t.Error("there is no authority")
	}
}
