// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject"
	"github.com/idempotency-dev/operator/internal/localpg"
)

const (
	image    = "registry.example.com/proxy:1"
	operator = "bench-operator"
	// creators create objects at a time.
	creators = 16
)

// bench is one run.
type bench struct {
	config
	out   io.Writer
	start time.Time

	dir        string
	api        *envtest.Environment
	postgres   *localpg.Server
	client     client.WithWatch
	kubeconfig string
	token      string // of who may read metrics
	audit      string
	sidecars   *sidecars
	manager    *manager
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.out, "%6.1fs  %s\n", time.Since(b.start).Seconds(), fmt.Sprintf(format, args...))
}

// close ends everything that prepare began.
func (b *bench) close() {
	if b.manager != nil {
		_ = b.stopManager()
	}
	if b.sidecars != nil {
		b.sidecars.close()
	}
	if b.api != nil {
		_ = b.api.Stop()
	}
	if b.postgres != nil {
		b.postgres.Stop()
	}
	if b.dir != "" {
		_ = os.RemoveAll(b.dir)
	}
}

// prepare starts both servers and makes every object that people and other controllers make.
func (b *bench) prepare(ctx context.Context) (err error) {
	if b.dir, err = os.MkdirTemp("", "bench-controller-"); err != nil {
		return err
	}
	if err := b.build(ctx); err != nil {
		return err
	}
	if b.postgres, err = localpg.Start(ctx, localpg.Options{Settings: map[string]string{"max_connections": "100", "max_locks_per_transaction": "256"}}); err != nil {
		return err
	}
	if err := b.startAPI(); err != nil {
		return err
	}
	if err := b.prepareDatabase(ctx); err != nil {
		return err
	}
	if err := b.prepareScraper(ctx); err != nil {
		return err
	}
	b.sidecars = newSidecars()
	b.say("making %d namespaces, %d policies and %d pods", b.namespaces, b.policies, b.pods)
	if err := b.create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "idempotency-system"}}); err != nil {
		return err
	}
	if err := b.each(b.namespaces, func(i int) error { return b.makeNamespace(ctx, i) }); err != nil {
		return err
	}
	if err := b.each(b.policies, func(i int) error { return b.makePolicy(ctx, i) }); err != nil {
		return err
	}
	if err := b.each(b.pods, func(i int) error { return b.makePod(ctx, i) }); err != nil {
		return err
	}
	return b.sidecars.follow(ctx, b.client)
}

// startAPI starts an API server that writes down what the operator writes.
func (b *bench) startAPI() error {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("build scheme: %w", err)
	}
	b.audit = filepath.Join(b.dir, "audit.log")
	policy := filepath.Join(b.dir, "policy.yaml")
	text := "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: None\n  resources: [{group: authentication.k8s.io}, {group: authorization.k8s.io}]\n- level: Metadata\n  users: [" + operator + "]\n  verbs: [create, update, patch, delete, deletecollection]\n- level: None\n"
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		return err
	}
	b.api = &envtest.Environment{CRDDirectoryPaths: []string{filepath.Join("config", "crd", "bases")}, ErrorIfCRDPathMissing: true, Scheme: scheme}
	b.api.ControlPlane.GetAPIServer().Configure().
		Append("audit-policy-file", policy).Append("audit-log-path", b.audit).Append("audit-log-mode", "blocking")
	config, err := b.api.Start()
	if err != nil {
		return fmt.Errorf("start kube-apiserver and etcd: %w", err)
	}
	config.QPS = -1 // no client-side limit
	if b.client, err = client.NewWithWatch(config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	user, err := b.api.AddUser(envtest.User{Name: operator, Groups: []string{"system:masters"}}, nil)
	if err != nil {
		return err
	}
	kubeconfig, err := user.KubeConfig()
	if err != nil {
		return err
	}
	b.kubeconfig = filepath.Join(b.dir, "kubeconfig")
	return os.WriteFile(b.kubeconfig, kubeconfig, 0o600)
}

// each calls do for 0 to n-1, several at a time, and returns the errors.
func (b *bench) each(n int, do func(i int) error) error {
	var working sync.WaitGroup
	numbers, errs := make(chan int), make([]error, creators)
	for worker := range creators {
		working.Go(func() {
			for i := range numbers {
				if errs[worker] == nil {
					errs[worker] = do(i)
				}
			}
		})
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	working.Wait()
	return errors.Join(errs...)
}

func (b *bench) create(ctx context.Context, o client.Object) error {
	if err := b.client.Create(ctx, o); err != nil {
		return fmt.Errorf("create %T %s/%s: %w", o, o.GetNamespace(), o.GetName(), err)
	}
	return nil
}

func (b *bench) namespaceOf(policy int) string { return fmt.Sprintf("team-%04d", policy%b.namespaces) }

func policyName(policy int) string { return fmt.Sprintf("policy-%05d", policy) }

func (b *bench) makeNamespace(ctx context.Context, i int) error {
	name := b.namespaceOf(i)
	if err := b.create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.InjectionLabel: v1alpha1.InjectionEnabled}}}); err != nil {
		return err
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "app"},
		Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"app": "any"}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromString("http")}}},
	}
	if err := b.create(ctx, service); err != nil {
		return err
	}
	return b.create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "db"}, StringData: map[string]string{"dsn": b.sidecarDSN(), "admin-dsn": b.postgres.DSN("postgres")}})
}

// policy is the i-th, for the pods labelled app: <its name>.
func (b *bench) policy(i int) *v1alpha1.IdempotencyPolicy {
	return &v1alpha1.IdempotencyPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: b.namespaceOf(i), Name: policyName(i)},
		Spec: v1alpha1.IdempotencyPolicySpec{
			Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": policyName(i)}},
			Target:   v1alpha1.Target{Port: intstr.FromString("http")},
			Store: v1alpha1.Store{Postgres: &v1alpha1.PostgresStore{
				DSNSecretRef: v1alpha1.SecretKeyRef{Name: "db", Key: "dsn"}, AdminDSNSecretRef: &v1alpha1.SecretKeyRef{Name: "db", Key: "admin-dsn"},
			}},
			Retention: v1alpha1.Retention{CreateAhead: 2},
			Client:    v1alpha1.Client{Header: "X-Client-Id"},
			Routes:    []v1alpha1.Route{{Name: "create", Methods: []v1alpha1.Method{"POST"}, Path: "/payments"}},
		},
	}
}

func (b *bench) makePolicy(ctx context.Context, i int) error {
	if err := b.sidecars.listen(ctx, i, b.namespaceOf(i), policyName(i)); err != nil {
		return err
	}
	return b.create(ctx, b.policy(i))
}

// makePod makes the i-th as the webhook lets it in, and says that it runs.
func (b *bench) makePod(ctx context.Context, i int) error {
	of := b.policy(i % b.policies)
	bare := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: fmt.Sprintf("pod-%05d", i), Labels: of.Spec.Selector.MatchLabels},
		Spec: corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{
			Name: "app", Image: "registry.example.com/app:1", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
		}}},
	}
	pod, err := inject.Pod(inject.FromPolicy(of, image), bare)
	if err != nil {
		return err
	}
	if err := b.create(ctx, pod); err != nil {
		return err
	}
	ip := addressOf(i % b.policies)
	before := pod.DeepCopy()
	pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, ip, []corev1.PodIP{{IP: ip}}
	return b.client.Status().Patch(ctx, pod, client.MergeFrom(before))
}
