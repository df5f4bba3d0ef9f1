// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
)

// server is the kube-apiserver that the tests share; each has its own namespaces.
var server struct {
	client client.Client
	// Kubeconfig files: of a user who may do anything, of one who may read policies, and of one who may do nothing.
	admin, reader, stranger string
}

func TestMain(m *testing.M) {
	environment := &envtest.Environment{
		CRDDirectoryPaths:     []string{filepath.Join("..", "..", "config", "crd", "bases")},
		ErrorIfCRDPathMissing: true,
	}
	dir, err := os.MkdirTemp("", "kubectl-idempotency-")
	if err == nil {
		err = start(environment, dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "start kube-apiserver and etcd:", err)
		_ = environment.Stop()
		os.Exit(1)
	}
	defer func() { _, _ = environment.Stop(), os.RemoveAll(dir) }()
	pgtest.Main(m)
}

// start starts the API server and writes the users' files into dir.
func start(environment *envtest.Environment, dir string) error {
	config, err := environment.Start()
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	if server.client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	for _, user := range []struct {
		file *string
		envtest.User
	}{
		{&server.admin, envtest.User{Name: "admin", Groups: []string{"system:masters"}}},
		{&server.reader, envtest.User{Name: "reader", Groups: []string{"policy-readers"}}},
		{&server.stranger, envtest.User{Name: "stranger"}},
	} {
		added, err := environment.AddUser(user.User, nil)
		if err != nil {
			return err
		}
		kubeconfig, err := added.KubeConfig()
		if err != nil {
			return err
		}
		*user.file = filepath.Join(dir, user.Name)
		if err := os.WriteFile(*user.file, kubeconfig, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// newNamespace makes a namespace in which the reader may read policies.
func newNamespace(t *testing.T) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	create(t, namespace)
	meta := metav1.ObjectMeta{Namespace: namespace.Name, Name: "policy-readers"}
	create(t, &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"idempotency.dev"}, Resources: []string{"idempotencypolicies"}, Verbs: []string{"get", "list"}},
	}})
	create(t, &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "policy-readers"}},
	})
	waitForReader(t, namespace.Name)
	return namespace.Name
}

// waitForReader waits until the API server's authorizer has seen the reader's role.
func waitForReader(t *testing.T, namespace string) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "reader", Groups: []string{"policy-readers"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "get", Group: "idempotency.dev", Resource: "idempotencypolicies"},
		}}
		create(t, review)
		if review.Status.Allowed {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the role does not work after a minute")
		}
	}
}

// createPolicy creates the sample policy under another name, with a status of an earlier generation: accepted, and not ready.
func createPolicy(t *testing.T, namespace, name, label string) {
	t.Helper()
	sample, err := os.ReadFile(samplePath)
	if err != nil {
		t.Fatal(err)
	}
	p, err := decodePolicy(strings.NewReader(strings.Replace(string(sample), "app: payments", label, 1)))
	if err != nil {
		t.Fatal(err)
	}
	p.Namespace, p.Name = namespace, name
	create(t, p)
	condition := func(name string, status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: name, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(time.Unix(1e9, 0))}
	}
	p.Status.Conditions = []metav1.Condition{
		condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonInvalid),
		condition(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted),
	}
	if err := server.client.Status().Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, object client.Object) {
	t.Helper()
	if err := server.client.Create(t.Context(), object); err != nil {
		t.Fatalf("create %T: %v", object, err)
	}
}
