// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/event"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
	"github.com/idempotency-dev/operator/internal/retention"
)

const sidecarImage = "registry.example.com/proxy:1.0"

// world is one test's own: a namespace with a running controller, a database with two roles, and their Secret.
type world struct {
	t         *testing.T
	namespace string
	// database is the superuser's DSN, admin that of the operator's role, sidecar that of the sidecar's.
	database, admin, sidecar string
	adminRole, sidecarRole   string
	stores                   *Stores
	// others are the namespaces beside its own that the controllers see; with any, cluster policies are reconciled, too.
	others []string
	// name is what this test's cluster policies are labelled.
	name string
	// secretsFrom is the namespace that Secrets may be copied from.
	secretsFrom string
	// passes counts how often a policy was looked at.
	passes *maintained
}

// newWorld starts a controller with the given clock, nil for the real one. Nobody maintains partitions.
func newWorld(t *testing.T, clk clock.Clock) *world {
	t.Helper()
	w := makeWorld(t)
	if clk == nil {
		clk = clock.RealClock{}
	}
	w.run(clk, false)
	return w
}

// newWholeWorld runs the maintenance of partitions, too.
func newWholeWorld(t *testing.T) *world {
	t.Helper()
	w := makeWorld(t)
	w.run(clock.RealClock{}, true)
	return w
}

func makeWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, namespace: newNamespace(t), database: pgtest.NewDatabase(t), passes: &maintained{}}
	suffix := strings.ToLower(rand.Text()[:10])
	w.adminRole, w.sidecarRole = "operator_"+suffix, "sidecar_"+suffix
	for _, role := range []string{w.adminRole, w.sidecarRole} {
		pgtest.Exec(t, w.database, "CREATE ROLE "+role+" LOGIN PASSWORD 'secret-of-"+role+"'")
	}
	w.exec("GRANT CREATE ON DATABASE " + w.databaseName() + " TO " + w.adminRole)
	w.admin, w.sidecar = w.dsn(w.adminRole), w.dsn(w.sidecarRole)
	w.secret("db", map[string]string{"dsn": w.sidecar, "admin-dsn": w.admin})
	return w
}

func (w *world) databaseName() string {
	u, err := url.Parse(w.database)
	if err != nil {
		w.t.Fatal("parse DSN")
	}
	return strings.TrimPrefix(u.Path, "/")
}

// dsn is the database's for another role.
func (w *world) dsn(role string) string {
	u, err := url.Parse(w.database)
	if err != nil {
		w.t.Fatal("parse DSN")
	}
	u.User = url.UserPassword(role, "secret-of-"+role)
	return u.String()
}

func (w *world) exec(sql string) { pgtest.Exec(w.t, w.database, sql) }

// run runs the controller until the test ends.
func (w *world) run(clk clock.Clock, whole bool) {
	w.t.Helper()
	skip := true
	seen := map[string]cache.Config{w.namespace: {}}
	for _, other := range w.others {
		seen[other] = cache.Config{}
	}
	objects := CachedObjects()
	for object, by := range objects {
		if _, is := object.(*v1alpha1.ClusterIdempotencyPolicy); is {
			by.Label = labels.SelectorFromSet(labels.Set{"test": w.name})
			objects[object] = by
		}
	}
	mgr, err := ctrl.NewManager(server.config, ctrl.Options{
		Scheme:     server.scheme,
		Cache:      cache.Options{ByObject: objects, DefaultNamespaces: seen},
		Client:     client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}},
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: &skip},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.stores = NewStores(mgr.GetAPIReader(), clk)
	policies := &Policies{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: mgr.GetEventRecorder("idempotency-operator"), Stores: w.stores, Reports: w.passes, Clock: clk,
		SidecarImage: sidecarImage, ClusterID: "this-cluster",
	}
	policies.Sidecars = NewSidecars()
	if err := policies.Sidecars.SetupWithManager(mgr); err != nil {
		w.t.Fatal(err)
	}
	wakes := []<-chan event.GenericEvent{policies.Sidecars.Wake()}
	if whole {
		cleanup := NewCleanup(mgr.GetClient(), policies.Events, w.stores, clk)
		if err := cleanup.SetupWithManager(mgr); err != nil {
			w.t.Fatal(err)
		}
		policies.Reports, wakes = cleanup, append(wakes, cleanup.Wake())
	}
	if err := policies.SetupWithManager(mgr, wakes...); err != nil {
		w.t.Fatal(err)
	}
	if len(w.others) > 0 {
		clusterPolicies := &ClusterPolicies{Client: mgr.GetClient(), Events: policies.Events, Clock: clk, SidecarImage: sidecarImage, SecretsFrom: w.secretsFrom}
		if err := clusterPolicies.SetupWithManager(mgr); err != nil {
			w.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			w.t.Errorf("manager: %v", err)
		}
	})
	w.t.Cleanup(func() {
		cancel()
		running.Wait()
		w.stores.Close()
	})
}

// maintained reports that all is well with partitions that are not there yet, and counts who asks: each pass does so once.
type maintained struct{ asked atomic.Int64 }

func (m *maintained) Deliveries(types.NamespacedName) (retention.Report, bool) {
	return retention.Report{}, false
}

func (m *maintained) Report(types.NamespacedName) (retention.Report, error, bool) {
	m.asked.Add(1)
	return retention.Report{}, nil, true
}

// another waits for a whole pass that begins after now.
func (w *world) another(name string) {
	w.t.Helper()
	for range 2 { // the first may have begun before
		before := w.passes.asked.Load()
		w.nudge(name)
		eventually(w.t, func() error {
			if w.passes.asked.Load() == before {
				return errors.New("nobody has looked at the policy")
			}
			return nil
		})
	}
}

func (w *world) secret(name string, data map[string]string) {
	w.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, StringData: data}
	err := server.client.Create(w.t.Context(), secret)
	if client.IgnoreAlreadyExists(err) != nil {
		w.t.Fatal(err)
	}
	if err != nil {
		if err := server.client.Patch(w.t.Context(), secret, client.Merge); err != nil {
			w.t.Fatal(err)
		}
	}
}

// policy makes a policy for pods labelled app: payments, changed by change.
func (w *world) policy(name string, change func(*v1alpha1.IdempotencyPolicy)) *v1alpha1.IdempotencyPolicy {
	w.t.Helper()
	p := &v1alpha1.IdempotencyPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: v1alpha1.IdempotencyPolicySpec{
			Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "payments"}},
			Target:   v1alpha1.Target{Port: intstr.FromString("http")},
			Store: v1alpha1.Store{Postgres: &v1alpha1.PostgresStore{
				DSNSecretRef:      v1alpha1.SecretKeyRef{Name: "db", Key: "dsn"},
				AdminDSNSecretRef: &v1alpha1.SecretKeyRef{Name: "db", Key: "admin-dsn"},
			}},
			Client: v1alpha1.Client{Header: "X-Client-Id"},
			Routes: []v1alpha1.Route{{Name: "create", Methods: []v1alpha1.Method{"POST"}, Path: "/payments"}},
		},
	}
	if change != nil {
		change(p)
	}
	create(w.t, p)
	return p
}

func (w *world) get(name string) (*v1alpha1.IdempotencyPolicy, error) {
	p := &v1alpha1.IdempotencyPolicy{}
	return p, server.client.Get(w.t.Context(), types.NamespacedName{Namespace: w.namespace, Name: name}, p)
}

// nudge makes the controller look at a policy now rather than at the next probe.
func (w *world) nudge(name string) {
	w.t.Helper()
	p := &v1alpha1.IdempotencyPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"test/nudge":%q}}}`, rand.Text())
	if err := server.client.Patch(w.t.Context(), p, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		w.t.Fatal(err)
	}
}

// await waits for a condition at the policy's generation and returns its message.
func (w *world) await(name, condition string, status metav1.ConditionStatus, reason string) string {
	w.t.Helper()
	var message string
	eventually(w.t, func() error {
		p, err := w.get(name)
		if err != nil {
			return err
		}
		for _, c := range p.Status.Conditions {
			if c.Type == condition && c.Status == status && c.Reason == reason && c.ObservedGeneration == p.Generation {
				message = c.Message
				seenReasons.Store(reason, true)
				return nil
			}
		}
		return fmt.Errorf("policy %s is not yet %s=%s/%s: %s", name, condition, status, reason, describe(p))
	})
	return message
}

func describe(p *v1alpha1.IdempotencyPolicy) string {
	var b strings.Builder
	for _, c := range p.Status.Conditions {
		fmt.Fprintf(&b, "\n  %s=%s/%s %s", c.Type, c.Status, c.Reason, c.Message)
	}
	return b.String()
}

// awaitGone waits until the policy is deleted.
func (w *world) awaitGone(name string) {
	w.t.Helper()
	eventually(w.t, func() error {
		p, err := w.get(name)
		if err == nil {
			return fmt.Errorf("policy %s is still there: %s", name, describe(p))
		}
		return client.IgnoreNotFound(err)
	})
}

// keyspaces lists the registered ones.
func (w *world) keyspaces() []string {
	w.t.Helper()
	conn := pgtest.Connect(w.t, w.database)
	defer func() { _ = conn.Close(context.Background()) }()
	rows, err := conn.Query(w.t.Context(), "SELECT name FROM idempotency.keyspaces ORDER BY name")
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			w.t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

// errWait is what a condition says that does not hold yet.
var errWait = errors.New("not yet")
