// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
)

func TestAcceptedInvalid(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	// No webhook runs here, as when one is bypassed.
	w.policy("payments", func(p *v1alpha1.IdempotencyPolicy) {
		p.Spec.Routes = append(p.Spec.Routes, v1alpha1.Route{Name: "again", Methods: []v1alpha1.Method{"POST"}, Path: "/payments"})
	})
	message := w.await("payments", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalid)
	if !strings.Contains(message, "spec.routes[1]") || !strings.Contains(message, "create") {
		t.Errorf("the message %q does not name the routes that overlap", message)
	}
	w.await("payments", v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonInvalid)
	w.await("payments", v1alpha1.ConditionStoreHealthy, metav1.ConditionUnknown, v1alpha1.ReasonNotAccepted)
}

func TestAcceptedSecrets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.policy("payments", func(p *v1alpha1.IdempotencyPolicy) { p.Spec.Store.Postgres.DSNSecretRef.Name = "later" })
	if message := w.await("payments", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonSecretNotFound); !strings.Contains(message, `"later"`) {
		t.Errorf("the message %q does not name the Secret", message)
	}
	w.secret("later", map[string]string{"other": w.sidecar})
	if message := w.await("payments", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonSecretKeyMissing); !strings.Contains(message, `"dsn"`) {
		t.Errorf("the message %q does not name the key", message)
	}
	w.secret("later", map[string]string{"dsn": w.sidecar})
	w.await("payments", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// TestAcceptedEncryptionKeys: what is wrong with them is told, and nothing of them; the store is looked after meanwhile.
func TestAcceptedEncryptionKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32))
	w.policy("payments", func(p *v1alpha1.IdempotencyPolicy) {
		p.Spec.Store.EncryptionKeySecretRef = &v1alpha1.EncryptionKeySecretRef{Name: "later"}
	})
	says := func(reason string, parts ...string) {
		t.Helper()
		message := w.await("payments", v1alpha1.ConditionAccepted, metav1.ConditionFalse, reason)
		for _, part := range parts {
			if !strings.Contains(message, part) {
				t.Errorf("the message %q does not say %s", message, part)
			}
		}
		if strings.Contains(message, key[:6]) || strings.Contains(message, "SECRET") {
			t.Errorf("the message shows a part of a key: %s", message)
		}
	}
	says(v1alpha1.ReasonSecretNotFound, `"later"`, `"keys"`, "encryption keys")
	w.await("payments", v1alpha1.ConditionStoreHealthy, metav1.ConditionTrue, v1alpha1.ReasonHealthy)
	w.secret("later", map[string]string{"other": "x"})
	says(v1alpha1.ReasonSecretKeyMissing, `"later"`, `"keys"`)
	w.secret("later", map[string]string{"keys": "# first\none " + key + "\ntwo SECRET" + key + "\n"})
	says(v1alpha1.ReasonEncryptionKeyInvalid, `"later"`, `"keys"`, "line 3")
	w.secret("later", map[string]string{"keys": "one " + key + "\n"})
	w.await("payments", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

func TestAcceptedConflicted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.policy("first", nil)
	w.await("first", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	// The names are later in the alphabet, as creation times have whole seconds.
	w.policy("second", nil)
	w.policy("third", func(p *v1alpha1.IdempotencyPolicy) {
		p.Spec.Selector.MatchLabels = map[string]string{"tier": "backend"}
	})
	if message := w.await("second", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonConflicted); !strings.Contains(message, `"first"`) {
		t.Errorf("the message %q does not name the winner", message)
	}
	// What it has no pods for it does not claim to have done.
	w.await("second", v1alpha1.ConditionInjected, metav1.ConditionUnknown, v1alpha1.ReasonNotAccepted)
	w.await("second", v1alpha1.ConditionTrafficEnforced, metav1.ConditionUnknown, v1alpha1.ReasonNotAccepted)
	w.await("third", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)

	// A pod that both select makes a conflict of two selectors that differ.
	pod := w.pod("both", map[string]string{"app": "payments", "tier": "backend"}, nil)
	w.await("third", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonConflicted)
	if err := server.client.Delete(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	w.await("third", v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)

	p, err := w.get("first")
	if err != nil {
		t.Fatal(err)
	}
	if err := server.client.Delete(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	w.await("second", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

func TestAcceptedKeyspaceTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	other := newWorld(t, nil)
	// The same derived keyspace on the same database: that of a namespace of the same name in another cluster.
	w.policy("payments", nil)
	w.await("payments", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	pgtest.Exec(t, w.database, "UPDATE idempotency.keyspaces SET claim = 'another-cluster/x/payments'")
	w.secret("db", map[string]string{"admin-dsn": w.admin + "&application_name=again"})
	w.nudge("payments")
	message := w.await("payments", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonKeyspaceTaken)
	if !strings.Contains(message, w.namespace+".payments") {
		t.Errorf("the message %q does not name the keyspace", message)
	}
	w.await("payments", v1alpha1.ConditionStoreHealthy, metav1.ConditionTrue, v1alpha1.ReasonHealthy)

	// A keyspace that both name is shared on purpose.
	shared := func(p *v1alpha1.IdempotencyPolicy) { p.Spec.Keyspace = "shared" }
	w.policy("sharing", func(p *v1alpha1.IdempotencyPolicy) {
		shared(p)
		p.Spec.Selector.MatchLabels = map[string]string{"app": "sharing"}
	})
	w.await("sharing", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	other.exec("GRANT " + w.adminRole + " TO " + other.adminRole)
	other.secret("db", map[string]string{"dsn": w.sidecar, "admin-dsn": w.admin})
	other.policy("sharing", shared)
	other.await("sharing", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// TestMoveIsRefused: no webhook runs here, as when one is bypassed. Sidecars are told to look for entries elsewhere only when somebody gives up
// those that there are.
func TestMoveIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	p := w.policy("payments", nil)
	w.await("payments", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	before := w.configMap("payments").Data[configKey]
	from := "Postgres/" + w.namespace + ".payments"
	for _, edit := range []string{
		`{"spec":{"keyspace":"other"}}`,
		`{"metadata":{"annotations":{"idempotency.dev/abandon-entries":"Postgres/other"}},"spec":{"mode":"Audit"}}`,
		`{"spec":{"keyspace":null,"store":{"postgres":null,"redis":{"dsnSecretRef":{"name":"db"}}}}}`,
	} {
		w.edit(p, edit)
		if message := w.await("payments", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalid); !strings.Contains(message, v1alpha1.AbandonAnnotation+"="+from) {
			t.Errorf("after %s the message %q does not say what would be lost", edit, message)
		}
		if now := w.configMap("payments").Data[configKey]; now != before {
			t.Errorf("after %s sidecars are told %s", edit, now)
		}
	}
	w.edit(p, `{"spec":{"keyspace":"other","store":{"redis":null,"postgres":{"dsnSecretRef":{"name":"db"},"adminDSNSecretRef":{"name":"db","key":"admin-dsn"}}}}}`)
	w.edit(p, `{"metadata":{"annotations":{"idempotency.dev/abandon-entries":"`+from+`"}}}`)
	w.await("payments", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	if names := w.keyspaces(); len(names) != 2 {
		t.Errorf("keyspaces are %v", names)
	}
	// The consent is for that way only.
	w.edit(p, `{"spec":{"keyspace":null}}`)
	w.await("payments", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalid)
}

// pod makes a pod with the port http, changed by change.
func (w *world) pod(name string, labels map[string]string, change func(*corev1.Pod)) *corev1.Pod {
	w.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name, Labels: labels},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "app", Image: "registry.example.com/app:1", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
		}}},
	}
	if change != nil {
		change(pod)
	}
	create(w.t, pod)
	return pod
}
