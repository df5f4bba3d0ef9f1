// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
)

// server is the kube-apiserver that every test of this package shares; each test has its own namespaces.
var server struct {
	config *rest.Config
	client client.Client
	scheme *runtime.Scheme
}

// logged is what every controller of this package's tests wrote.
var logged transcript

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

func TestMain(m *testing.M) {
	environment := &envtest.Environment{
		CRDDirectoryPaths:     []string{filepath.Join("..", "..", "config", "crd", "bases")},
		ErrorIfCRDPathMissing: true,
	}
	if err := connect(environment); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer func() { _ = environment.Stop() }()
	slog.SetDefault(slog.New(slog.NewTextHandler(&logged, nil)))
	ctrl.SetLogger(logr.FromSlogHandler(slog.Default().Handler()))
	pgtest.Main(m)
	if flag.Lookup("test.run").Value.String() != "" || flag.Lookup("test.skip").Value.String() != "" || flag.Lookup("test.list").Value.String() != "" {
		return // only some tests ran
	}
	if unseen, err := unseenReasons(); err != nil || len(unseen) > 0 {
		fmt.Fprintln(os.Stderr, "FAIL: no test has brought about, on a server, the reasons", unseen, err)
		_ = environment.Stop()
		os.Exit(1) //nolint:gocritic // what is deferred has just been done
	}
}

func connect(environment *envtest.Environment) error {
	config, err := environment.Start()
	if err != nil {
		return fmt.Errorf("start kube-apiserver and etcd: %w", err)
	}
	config.QPS = -1 // no client-side limit
	server.config, server.scheme = config, runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(server.scheme), v1alpha1.AddToScheme(server.scheme)); err != nil {
		return fmt.Errorf("build scheme: %w", err)
	}
	server.client, err = client.New(config, client.Options{Scheme: server.scheme})
	return err
}

// newNamespace makes a namespace that is opted in to injection.
func newNamespace(t *testing.T) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "test-", Labels: map[string]string{v1alpha1.InjectionLabel: v1alpha1.InjectionEnabled},
	}}
	create(t, ns)
	return ns.Name
}

func create(t *testing.T, obj client.Object) {
	t.Helper()
	if err := server.client.Create(t.Context(), obj); err != nil {
		t.Fatalf("create %T %s: %v", obj, obj.GetName(), err)
	}
}

// eventually polls until check returns nil, and fails the test with its last error when the time is over.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("after 60s: %v", err)
		case <-tick.C:
		}
	}
}

// readYAML decodes a file of the repository.
func readYAML(t *testing.T, into any, path ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{"..", ".."}, path...)...))
	if err == nil {
		err = yaml.UnmarshalStrict(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}
