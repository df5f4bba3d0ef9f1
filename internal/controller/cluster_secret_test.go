// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/policy"
)

// copy waits until the Secret shared of a namespace has just these keys, and returns it.
func (w *world) copy(want map[string]string) *corev1.Secret {
	w.t.Helper()
	found := &corev1.Secret{}
	eventually(w.t, func() error {
		if err := server.client.Get(w.t.Context(), types.NamespacedName{Namespace: w.namespace, Name: "shared"}, found); err != nil {
			return err
		}
		if len(found.Data) != len(want) {
			return fmt.Errorf("the copy has %d keys, not %d", len(found.Data), len(want))
		}
		for key, value := range want {
			if string(found.Data[key]) != value {
				return fmt.Errorf("the copy has another %s", key)
			}
		}
		return nil
	})
	return found
}

// TestSecretSync copies a Secret into the namespaces that are selected and opted in, and nothing else anywhere.
func TestSecretSync(t *testing.T) {
	t.Parallel()
	p := newPlatform(t, 4)
	a, own, closed := p.namespace, p.others[0], p.others[1]
	p.secretsFrom = p.others[2]
	source := p.in(p.secretsFrom)
	for _, namespace := range []string{a, own, closed} {
		p.label(namespace, true)
	}
	p.setInjection(closed, "disabled")
	p.in(own).secret("shared", map[string]string{"dsn": p.sidecar, "admin-dsn": p.admin, "mine": "yes"})
	p.cluster(p.name, func(s *v1alpha1.ClusterIdempotencyPolicySpec) {
		s.SecretSyncFrom = &v1alpha1.SecretSource{Namespace: p.secretsFrom, Name: "central"}
		s.Store.Postgres.DSNSecretRef.Name, s.Store.Postgres.AdminDSNSecretRef.Name = "shared", "shared"
	})
	p.run(clock.RealClock{}, false)
	is := func(reason, says string) {
		t.Helper()
		last := p.awaitCluster(p.name, v1alpha1.ConditionAccepted, metav1.ConditionFalse, reason, namespaces(3, 0, 0, 0))
		if !strings.Contains(last.Conditions[0].Message, says) {
			t.Errorf("the message %q does not say %q", last.Conditions[0].Message, says)
		}
	}
	is(v1alpha1.ReasonSecretNotFound, `"central"`)
	source.secret("central", map[string]string{"dsn": p.sidecar})
	is(v1alpha1.ReasonSecretKeyMissing, `"admin-dsn"`)
	source.secret("central", map[string]string{"dsn": p.sidecar, "admin-dsn": p.admin, "other": "not for namespaces"})

	name := policy.NameInNamespace(p.name)
	both := map[string]string{"dsn": p.sidecar, "admin-dsn": p.admin}
	copied := p.copy(both)
	p.await(name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	made, err := p.get(name)
	if err != nil {
		t.Fatal(err)
	}
	if !metav1.IsControlledBy(copied, made) { // so that the garbage collector takes it when the policy goes
		t.Errorf("the copy's owners are %v", copied.OwnerReferences)
	}
	// A Secret that is there is used, and left alone; and a namespace that is not opted in gets none.
	p.in(own).await(name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	p.in(own).copy(map[string]string{"dsn": p.sidecar, "admin-dsn": p.admin, "mine": "yes"})
	p.in(closed).await(name, v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonSecretNotFound)
	p.setInjection(closed, v1alpha1.InjectionEnabled)
	p.in(closed).copy(both)
	p.awaitCluster(p.name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, namespaces(3, 3, 0, 0))

	// A copy that is lost is made again, and a rotation reaches every copy.
	if err := server.client.Delete(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
	p.nudge(name)
	p.copy(both)
	rotated := map[string]string{"dsn": p.sidecar + "&application_name=rotated", "admin-dsn": p.admin}
	source.secret("central", rotated)
	p.editCluster(p.name, `{"metadata":{"annotations":{"test/nudge":"1"}}}`)
	p.copy(rotated)
	p.in(closed).copy(rotated)
	if text := logged.String(); strings.Contains(text, "application_name=rotated") {
		t.Error("the log has a part of a connection string")
	}
}

func (p *platform) setInjection(namespace, value string) {
	p.t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, v1alpha1.InjectionLabel, value)
	if err := server.client.Patch(p.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		p.t.Fatal(err)
	}
}

// TestSecretSyncNotAllowed: without the flag, or from another namespace than the flag names, nothing is copied, and no policy is made either.
func TestSecretSyncNotAllowed(t *testing.T) {
	t.Parallel()
	p := newPlatform(t, 2)
	p.label(p.namespace, true)
	p.cluster(p.name, func(s *v1alpha1.ClusterIdempotencyPolicySpec) {
		s.SecretSyncFrom = &v1alpha1.SecretSource{Namespace: p.others[0], Name: "db"}
		s.Store.Postgres.DSNSecretRef.Name, s.Store.Postgres.AdminDSNSecretRef.Name = "shared", "shared"
	})
	p.run(clock.RealClock{}, false)
	last := p.awaitCluster(p.name, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonSecretSyncNotAllowed, namespaces(1, 0, 0, 0))
	if !strings.Contains(last.Conditions[0].Message, "--secret-sync-from="+p.others[0]) {
		t.Errorf("the message %q does not say what to do", last.Conditions[0].Message)
	}
	if _, err := p.get(policy.NameInNamespace(p.name)); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("a policy was made: %v", err)
	}
}

// TestSecretSyncFails: a namespace that refuses the copy does not keep others from theirs, and what the API server says has no part of a Secret.
func TestSecretSyncFails(t *testing.T) {
	t.Parallel()
	denied := errors.New("no Secrets here")
	made := &v1alpha1.IdempotencyPolicy{ObjectMeta: metav1.ObjectMeta{UID: "x"}}
	p := &clusterPass{policy: &v1alpha1.ClusterIdempotencyPolicy{}, secret: &copied{name: "shared", data: map[string][]byte{"dsn": []byte("postgres://secret")}}}
	for _, namespace := range []string{"a", "b"} {
		in := made.DeepCopy()
		in.Namespace = namespace
		p.places = append(p.places, place{namespace: namespace, enabled: true, made: in})
	}
	secrets := &refusing{namespace: "a", err: denied, written: map[string]bool{}}
	r := &ClusterPolicies{Client: secrets, Clock: clock.RealClock{}}
	err := r.copySecret(t.Context(), p)
	if !errors.Is(err, denied) || strings.Contains(err.Error(), "postgres://") {
		t.Errorf("error is %v", err)
	}
	if p.places[0].reason != v1alpha1.ReasonApplyFailed || p.places[1].reason != "" || !secrets.written["b"] {
		t.Errorf("places are %+v, written %v", p.places, secrets.written)
	}
	// What was refused is tried again, and what was written is not.
	secrets.err, secrets.written, p.places[0].reason = nil, map[string]bool{}, ""
	if err := r.copySecret(t.Context(), p); err != nil || !secrets.written["a"] || secrets.written["b"] {
		t.Errorf("then %v, written %v", err, secrets.written)
	}
}

// refusing has no Secrets, and refuses new ones in a namespace.
type refusing struct {
	client.Client
	namespace string
	err       error
	mu        sync.Mutex
	written   map[string]bool
}

func (c *refusing) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(corev1.Resource("secrets"), key.Name)
}

func (c *refusing) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	if o.GetNamespace() == c.namespace && c.err != nil {
		return c.err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written[o.GetNamespace()] = true
	return nil
}
