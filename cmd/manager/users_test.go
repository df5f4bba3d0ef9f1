// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject/injecttest"
)

// TestUserRoles shows what whoever may view, edit or administer a namespace may do with its policies: never write what the operator saw.
func TestUserRoles(t *testing.T) {
	reading := []string{"get", "list", "watch"}
	all := []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	aggregated := map[string]map[string][]string{} // by role and resource
	for _, o := range installed(t, "rbac") {
		var role rbacv1.ClusterRole
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &role); err != nil || o.GetKind() != "ClusterRole" {
			continue
		}
		for _, to := range []string{"view", "edit", "admin"} {
			if role.Labels["rbac.authorization.k8s.io/aggregate-to-"+to] != "true" {
				continue
			}
			for _, r := range rightsIn("", role.Rules) {
				if aggregated[to] == nil {
					aggregated[to] = map[string][]string{}
				}
				verbs := append(aggregated[to][r.resource+"."+r.group], r.verb)
				slices.Sort(verbs)
				aggregated[to][r.resource+"."+r.group] = verbs
			}
		}
	}
	read := map[string][]string{"idempotencypolicies.idempotency.dev": reading, "idempotencypolicies/status.idempotency.dev": reading}
	write := map[string][]string{"idempotencypolicies.idempotency.dev": all, "idempotencypolicies/status.idempotency.dev": reading}
	if diff := cmp.Diff(map[string]map[string][]string{"view": read, "edit": write, "admin": write}, aggregated); diff != "" {
		t.Errorf("roles differ (-want +got):\n%s", diff)
	}
}

// TestUsers shows the same on an API server: who may edit in a namespace may write policies there, and neither elsewhere nor for the cluster.
func TestUsers(t *testing.T) {
	admin, config := startServer(t)
	as := func(user string) client.Client {
		t.Helper()
		config := rest.CopyConfig(config)
		config.Impersonate = rest.ImpersonationConfig{UserName: user}
		c, err := client.New(config, client.Options{Scheme: admin.Scheme()})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	ctx := t.Context()
	// Nobody answers for the webhook here.
	if err := admin.Delete(ctx, validatingWebhook()); err != nil {
		t.Fatal(err)
	}
	aggregate(t, admin, "view", "edit")
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		bind("shop", "view", "viewer"), bind("shop", "edit", "editor"),
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "platform"}, Subjects: bind("", "", "platform").Subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "idempotency-operator-cluster-edit"},
		},
	} {
		if err := admin.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	written := func(namespace, name string) *v1alpha1.IdempotencyPolicy {
		p := injecttest.Policy()
		p.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: name}
		return p
	}
	cluster := func(name string) *v1alpha1.ClusterIdempotencyPolicy {
		return &v1alpha1.ClusterIdempotencyPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ClusterIdempotencyPolicySpec{
			NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}, IdempotencyPolicySpec: injecttest.Policy().Spec,
		}}
	}
	status := client.RawPatch(types.MergePatchType, []byte(`{"status":{"observedGeneration":7}}`))
	// The API server takes a moment to know of the bindings.
	wait(t, nil, func() error { return client.IgnoreAlreadyExists(as("editor").Create(ctx, written("shop", "mine"))) })
	wait(t, nil, func() error { return client.IgnoreAlreadyExists(as("platform").Create(ctx, cluster("all"))) })
	wait(t, nil, func() error {
		return as("viewer").Get(ctx, client.ObjectKey{Namespace: "shop", Name: "mine"}, &v1alpha1.IdempotencyPolicy{})
	})
	for _, row := range []struct {
		err       error
		forbidden bool
		reason    string
	}{
		{as("editor").Patch(ctx, written("shop", "mine"), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"mode":"Audit"}}`))), false, "an editor changes a policy"},
		{as("editor").Create(ctx, written("default", "other")), true, "an editor writes into another namespace"},
		{as("editor").Create(ctx, cluster("mine")), true, "an editor writes for the cluster"},
		{as("editor").Status().Patch(ctx, written("shop", "mine"), status), true, "an editor writes what the operator saw"},
		{as("viewer").Create(ctx, written("shop", "another")), true, "a viewer writes"},
		{as("platform").Status().Patch(ctx, cluster("all"), status), true, "the platform team writes what the operator saw"},
		{as("platform").Create(ctx, written("shop", "platforms")), true, "the platform team's role is for cluster policies only"},
		{as("editor").Delete(ctx, written("shop", "mine")), false, "an editor deletes a policy"},
	} {
		if apierrors.IsForbidden(row.err) != row.forbidden || !row.forbidden && row.err != nil {
			t.Errorf("%s: %v", row.reason, row.err)
		}
	}
}

// aggregate does what the controller manager does in a cluster: it fills the roles that others are gathered in.
func aggregate(t *testing.T, admin client.Client, names ...string) {
	t.Helper()
	all := &rbacv1.ClusterRoleList{}
	if err := admin.List(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	for _, into := range names {
		role := &rbacv1.ClusterRole{}
		if err := admin.Get(t.Context(), types.NamespacedName{Name: into}, role); err != nil {
			t.Fatal(err)
		}
		for i := range all.Items {
			if all.Items[i].Labels["rbac.authorization.k8s.io/aggregate-to-"+into] == "true" {
				role.Rules = append(role.Rules, all.Items[i].Rules...)
			}
		}
		if err := admin.Update(t.Context(), role); err != nil {
			t.Fatal(err)
		}
	}
}

func bind(namespace, role, user string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}
}
