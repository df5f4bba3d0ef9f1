// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

func (w *world) configMap(policy string) *corev1.ConfigMap {
	w.t.Helper()
	found := &corev1.ConfigMap{}
	if err := server.client.Get(w.t.Context(), types.NamespacedName{Namespace: w.namespace, Name: "idempotency-" + policy}, found); err != nil {
		w.t.Fatal(err)
	}
	return found
}

// versions are the resource versions of everything that the operator writes.
func (w *world) versions(policy string) map[string]string {
	w.t.Helper()
	p, err := w.get(policy)
	if err != nil {
		w.t.Fatal(err)
	}
	versions := map[string]string{"policy": p.ResourceVersion, "config": w.configMap(policy).ResourceVersion}
	events := &eventsv1.EventList{}
	if err := server.client.List(w.t.Context(), events, client.InNamespace(w.namespace)); err != nil {
		w.t.Fatal(err)
	}
	for i := range events.Items {
		// The API server itself tells of Services whose addresses it repairs.
		if events.Items[i].ReportingController == "idempotency-operator" {
			versions["event "+events.Items[i].Name] = events.Items[i].ResourceVersion
		}
	}
	return versions
}

// TestSteadyState lets passes happen, by what wakes them, while there is nothing to do.
func TestSteadyState(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.ready("payments", nil)
	w.another("payments")
	w.exec(`CREATE TABLE ddl (tag text);
		CREATE FUNCTION note_ddl() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN INSERT INTO public.ddl VALUES (tg_tag); END $$;
		CREATE EVENT TRIGGER note_ddl ON ddl_command_end EXECUTE FUNCTION note_ddl()`)
	before := w.versions("payments")
	for i := range 5 {
		asked := w.passes.asked.Load()
		w.service(fmt.Sprintf("other-%d", i), intstr.FromInt32(9090)) // each change of a Service wakes the policies beside it
		eventually(t, func() error {
			if w.passes.asked.Load() == asked {
				return fmt.Errorf("change %d woke nobody", i)
			}
			return nil
		})
		w.stores.expire()
	}
	if diff := cmp.Diff(before, w.versions("payments")); diff != "" {
		t.Errorf("something was written (-before +after):\n%s", diff)
	}
	conn := pgtest.Connect(t, w.database)
	defer func() { _ = conn.Close(context.Background()) }()
	var ddl int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM ddl").Scan(&ddl); err != nil || ddl > 0 {
		t.Errorf("%d statements of DDL (%v)", ddl, err)
	}
}

// expire makes the next pass probe for itself.
func (s *Stores) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, open := range s.open {
		if last := open.last.Load(); last != nil {
			aged := *last
			aged.at = aged.at.Add(-2 * probeShared)
			open.last.Store(&aged)
		}
		open.sidecars.Clear()
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	p := w.ready("payments", nil)
	first := w.configMap("payments")
	config, err := proxyconfig.Decode([]byte(first.Data[configKey]))
	if err != nil {
		t.Fatal(err)
	}
	if config.Keyspace != w.namespace+".payments" || config.Policy.Generation != 1 {
		t.Errorf("compiled to keyspace %s, generation %d", config.Keyspace, config.Policy.Generation)
	}
	if !metav1.IsControlledBy(first, p) {
		t.Error("the policy does not own its ConfigMap")
	}

	again := func(what string) {
		t.Helper()
		eventually(t, func() error {
			found := &corev1.ConfigMap{}
			if err := server.client.Get(t.Context(), client.ObjectKeyFromObject(first), found); err != nil {
				return err
			}
			if found.Data[configKey] != first.Data[configKey] {
				return fmt.Errorf("%s: the config is %q", what, found.Data[configKey])
			}
			return nil
		})
	}
	if err := server.client.Patch(t.Context(), first.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"data":{"config.json":"{}"}}`))); err != nil {
		t.Fatal(err)
	}
	again("edited")
	w.remove(first.DeepCopy())
	again("deleted")

	// A policy that stops being valid keeps the last good config: pods that have it go on.
	bad := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"routes":[{"name":"a","methods":["POST"],"path":"/x/{"}]}}`))
	if err := server.client.Patch(t.Context(), p, bad); err != nil {
		t.Fatal(err)
	}
	w.await("payments", v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalid)
	again("invalid")
	good := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"routes":[{"name":"a","methods":["POST"],"path":"/x"}]}}`))
	if err := server.client.Patch(t.Context(), p, good); err != nil {
		t.Fatal(err)
	}
	w.await("payments", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	if text := w.configMap("payments").Data[configKey]; !strings.Contains(text, `"/x"`) {
		t.Errorf("the config did not follow: %s", text)
	}
}

func TestSecretRotation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.ready("payments", nil)
	w.exec("ALTER ROLE " + w.adminRole + " PASSWORD 'the-next-one'; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '" + w.adminRole + "'")
	w.stores.expire()
	w.nudge("payments")
	w.await("payments", v1alpha1.ConditionStoreHealthy, metav1.ConditionFalse, v1alpha1.ReasonAuthFailed)
	rotated, err := url.Parse(w.admin)
	if err != nil {
		t.Fatal("parse DSN")
	}
	rotated.User = url.UserPassword(w.adminRole, "the-next-one")
	w.secret("db", map[string]string{"admin-dsn": rotated.String()})
	w.await("payments", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	w.stores.mu.Lock()
	defer w.stores.mu.Unlock()
	if len(w.stores.open) != 1 {
		t.Errorf("%d stores are open: the old connections were not closed", len(w.stores.open))
	}
}

// TestNothingOfADSNGetsOut gives the operator connection strings that cannot work, each full of a word that must not be seen again.
func TestNothingOfADSNGetsOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.policy("payments", nil)
	const word = "hunter2"
	for i, dsn := range []string{
		"hunter2", "hunter2://", "postgres://hunter2", "postgres://hunter2:hunter2@127.0.0.1:1/hunter2", "postgres://hunter2:hunter2@hunter2.invalid/hunter2",
		"postgres://u:hunter2@127.0.0.1:hunter2/db", "postgres://u:hunter2@127.0.0.1:99999/db", "postgres://u:hunter2@[::1/db", "postgres://u:hunt%er2hunter2@h/db",
		"postgres://u:p@h/db?sslmode=hunter2", "postgres://u:p@h/db?connect_timeout=hunter2", "postgres://u:p@h/db?target_session_attrs=hunter2",
		"postgres://u:p@h/db?sslrootcert=/hunter2", "host=hunter2.invalid password=hunter2", "host=127.0.0.1 port=1 user=hunter2 password='hunter2", "host=127.0.0.1 port=hunter2",
		"user=hunter2", "password=hunter2 host=/hunter2", "postgres://hunter2:" + word + "\n@127.0.0.1/db", "postgres://u:p@127.0.0.1:1/db?passfile=/hunter2&servicefile=/hunter2&service=hunter2",
		strings.Replace(w.admin, w.adminRole+":", "hunter2:", 1), strings.Replace(w.admin, "/t_", "/hunter2_", 1),
	} {
		for _, key := range []string{"dsn", "admin-dsn"} {
			data := map[string]string{"dsn": w.sidecar, "admin-dsn": w.admin}
			data[key] = dsn
			w.secret("db", data)
			w.another("payments")
			p, err := w.get("payments")
			if err != nil {
				t.Fatal(err)
			}
			if text := fmt.Sprint(p.Status); strings.Contains(text, word) {
				t.Errorf("connection string %d as %s: the status has a part of it: %s", i, key, text)
			}
		}
	}
	w.awaitEvent(v1alpha1.ReasonDSNInvalid)
	events := &eventsv1.EventList{}
	if err := server.client.List(t.Context(), events, client.InNamespace(w.namespace)); err != nil {
		t.Fatal(err)
	}
	for i := range events.Items {
		if strings.Contains(events.Items[i].Note, word) {
			t.Errorf("an event has a part of a connection string: %s", events.Items[i].Note)
		}
	}
	for line := range strings.Lines(logged.String()) {
		if strings.Contains(line, word) {
			t.Errorf("the log has a part of a connection string: %s", line)
		}
	}
	if !strings.Contains(logged.String(), "store is not healthy") {
		t.Error("nothing was logged, so nothing was tested")
	}
}

// TestServerRestart ends every connection, as a server does that restarts between two probes: that is no outage.
func TestServerRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.ready("payments", nil)
	w.another("payments")
	before := w.versions("payments")["policy"]
	w.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '" + w.adminRole + "'")
	w.stores.expire()
	asked := w.passes.asked.Load()
	w.service("other", intstr.FromInt32(9090))
	eventually(t, func() error {
		if w.passes.asked.Load() < asked+2 {
			w.touch("other")
			return errWait
		}
		return nil
	})
	if after := w.versions("payments")["policy"]; after != before {
		t.Error("the status was written")
	}
}

// touch changes a Service, which wakes the policies beside it.
func (w *world) touch(service string) {
	w.t.Helper()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: service}}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"test/touch":"%d"}}}`, w.passes.asked.Load()))
	if err := server.client.Patch(w.t.Context(), s, patch); err != nil {
		w.t.Fatal(err)
	}
}
