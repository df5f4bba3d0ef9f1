// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/policy"
)

const secretSync = name + "-secret-sync"

// allowSecretSync gives the operator the rights of config/secretsync.
func allowSecretSync(t *testing.T, admin client.Client) {
	t.Helper()
	for _, o := range installed(t, "secretsync") {
		if o.GetName() != secretSync {
			continue
		}
		if err := admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

// leadCluster takes a cluster policy like p through its life, and a Secret that it copies.
func leadCluster(t *testing.T, admin client.Client, o *operating, p *v1alpha1.IdempotencyPolicy) {
	t.Helper()
	ctx := t.Context()
	allowSecretSync(t, admin)
	source := func() *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "idempotency-secrets", Name: "central"}}
	}
	cluster := &v1alpha1.ClusterIdempotencyPolicy{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: v1alpha1.ClusterIdempotencyPolicySpec{
		NamespaceSelector:     metav1.LabelSelector{MatchLabels: map[string]string{"selected": "yes"}},
		SecretSyncFrom:        &v1alpha1.SecretSource{Namespace: "idempotency-secrets", Name: "central"},
		IdempotencyPolicySpec: *p.Spec.DeepCopy(),
	}}
	cluster.Spec.Store.Postgres = &v1alpha1.PostgresStore{DSNSecretRef: v1alpha1.SecretKeyRef{Name: "shared", Key: "dsn"}}
	cluster.Spec.Retention.DeletionPolicy = v1alpha1.DeletionRetain
	first, second := "postgres://nobody:change-me@127.0.0.1:1/none", "postgres://nobody:change-me-too@127.0.0.1:1/none"
	secret := source()
	secret.StringData = map[string]string{"dsn": first}
	for _, object := range []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "idempotency-secrets"}}, secret, cluster} {
		if err := admin.Create(ctx, object); err != nil {
			t.Fatal(err)
		}
	}
	label(t, admin, "default", `"yes"`)
	counted(t, admin, o, 1)
	copied(t, admin, o, first)
	if err := admin.Patch(ctx, source(), client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"stringData":{"dsn":%q}}`, second))); err != nil {
		t.Fatal(err)
	}
	nudge := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"test/nudge":"1"}}}`))
	if err := admin.Patch(ctx, cluster, nudge); err != nil {
		t.Fatal(err)
	}
	copied(t, admin, o, second)
	label(t, admin, "default", "null")
	counted(t, admin, o, 0)
	wait(t, o.ended, func() error {
		err := admin.Get(ctx, types.NamespacedName{Namespace: "default", Name: policy.NameInNamespace("all")}, &v1alpha1.IdempotencyPolicy{})
		if err == nil {
			return errors.New("the policy that was made is still there")
		}
		return client.IgnoreNotFound(err)
	})
}

// secretSyncRights are those of config/secretsync. They are taken from the operator, and only what take leaves it counts from then on.
func secretSyncRights(t *testing.T, admin client.Client) []right {
	t.Helper()
	role := &rbacv1.ClusterRole{}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: secretSync}}
	if err := errors.Join(admin.Get(t.Context(), types.NamespacedName{Name: secretSync}, role), admin.Delete(t.Context(), binding)); err != nil {
		t.Fatal(err)
	}
	return rightsIn("", role.Rules)
}

// copied waits until the copy of the Secret holds a value.
func copied(t *testing.T, admin client.Client, o *operating, value string) {
	t.Helper()
	wait(t, o.ended, func() error {
		c := &corev1.Secret{}
		if err := admin.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "shared"}, c); err != nil {
			return err
		}
		if string(c.Data["dsn"]) != value {
			return errors.New("the copy is another")
		}
		return nil
	})
}

// counted waits until the cluster policy's status speaks of so many namespaces, and each has its policy.
func counted(t *testing.T, admin client.Client, o *operating, selected int32) {
	t.Helper()
	wait(t, o.ended, func() error {
		c := &v1alpha1.ClusterIdempotencyPolicy{}
		if err := admin.Get(t.Context(), types.NamespacedName{Name: "all"}, c); err != nil {
			return err
		}
		if c.Status.Namespaces == nil || c.Status.Namespaces.Selected != selected || c.Status.Namespaces.Failing != selected {
			return fmt.Errorf("status is %+v", c.Status)
		}
		return nil
	})
}

func label(t *testing.T, admin client.Client, namespace, value string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{"selected":%s,%q:%q}}}`, value, v1alpha1.InjectionLabel, v1alpha1.InjectionEnabled)
	o := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if err := admin.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		t.Fatal(err)
	}
}

// TestNoSecretIsWritten: by default the operator may write no Secret but its own, and has no role that says otherwise.
func TestNoSecretIsWritten(t *testing.T) {
	for _, o := range installed(t, "default") {
		if o.GetName() == secretSync {
			t.Errorf("config/default has a %s %s", o.GetKind(), o.GetName())
		}
	}
	for _, r := range grantedRights(t) {
		if r.resource == "secrets" && r.verb != "get" && r.namespace != "idempotency-system" {
			t.Errorf("the operator may %s", r)
		}
	}
}

// TestSecretSyncManifest shows that the program takes the arguments of config/secretsync.
func TestSecretSyncManifest(t *testing.T) {
	for _, o := range installed(t, "secretsync") {
		if o.GetKind() != "Deployment" {
			continue
		}
		var deployment appsv1.Deployment
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &deployment); err != nil {
			t.Fatal(err)
		}
		config, err := parse(deployment.Spec.Template.Spec.Containers[0].Args, func(string) string { return "" })
		if err != nil || config.SecretSyncFrom != "idempotency-secrets" {
			t.Errorf("the program makes %+v of the arguments, %v", config, err)
		}
		return
	}
	t.Error("there is no Deployment")
}
