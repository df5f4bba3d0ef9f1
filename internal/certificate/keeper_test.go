// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const host = "webhook.test.svc"

var api client.Client

func TestMain(m *testing.M) {
	environment := &envtest.Environment{}
	config, err := environment.Start()
	if err == nil {
		config.QPS = -1 // no client-side limit
		api, err = client.New(config, client.Options{Scheme: clientgoscheme.Scheme})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "start kube-apiserver and etcd:", err)
		os.Exit(1)
	}
	defer func() { _ = environment.Stop() }()
	ctrl.SetLogger(logr.Discard())
	m.Run()
}

// cluster is one test's Secret and webhook configurations, with the replicas that share them.
type cluster struct {
	t      *testing.T
	config Config
	clock  *testingclock.FakeClock
}

func newCluster(t *testing.T, name string) *cluster {
	t.Helper()
	c := &cluster{t: t, clock: testingclock.NewFakeClock(time.Now()), config: Config{
		Secret: types.NamespacedName{Namespace: "default", Name: name}, Names: []string{host}, Webhooks: name,
	}}
	url, none := "https://"+host, admissionv1.SideEffectClassNone
	target := admissionv1.WebhookClientConfig{URL: &url}
	for _, o := range []client.Object{
		&admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionv1.MutatingWebhook{
			{Name: "a.test.dev", ClientConfig: target, SideEffects: &none, AdmissionReviewVersions: []string{"v1"}},
			{Name: "b.test.dev", ClientConfig: target, SideEffects: &none, AdmissionReviewVersions: []string{"v1"}},
		}},
		&admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionv1.ValidatingWebhook{
			{Name: "c.test.dev", ClientConfig: target, SideEffects: &none, AdmissionReviewVersions: []string{"v1"}},
		}},
	} {
		if err := api.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = api.Delete(context.Background(), o) })
	}
	t.Cleanup(func() {
		_ = api.Delete(context.Background(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: c.config.Secret.Namespace, Name: name}})
	})
	return c
}

func (c *cluster) replica() *Keeper { return New(c.config, api, c.clock) }

func (c *cluster) reconcile(k *Keeper) time.Duration {
	c.t.Helper()
	result, err := k.Reconcile(c.t.Context(), reconcile.Request{NamespacedName: c.config.Secret})
	if err != nil {
		c.t.Fatal(err)
	}
	return result.RequeueAfter
}

func (c *cluster) secret() *corev1.Secret {
	c.t.Helper()
	secret := &corev1.Secret{}
	if err := api.Get(c.t.Context(), c.config.Secret, secret); err != nil {
		c.t.Fatal(err)
	}
	return secret
}

func (c *cluster) deleteSecret() {
	c.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: c.config.Secret.Namespace, Name: c.config.Secret.Name}}
	if err := client.IgnoreNotFound(api.Delete(c.t.Context(), secret)); err != nil {
		c.t.Fatal(err)
	}
}

// bundles are what the API server trusts, one for each webhook.
func (c *cluster) bundles() [][]byte {
	c.t.Helper()
	mutating, validating := &admissionv1.MutatingWebhookConfiguration{}, &admissionv1.ValidatingWebhookConfiguration{}
	key := types.NamespacedName{Name: c.config.Webhooks}
	if err := errors.Join(api.Get(c.t.Context(), key, mutating), api.Get(c.t.Context(), key, validating)); err != nil {
		c.t.Fatal(err)
	}
	return [][]byte{mutating.Webhooks[0].ClientConfig.CABundle, mutating.Webhooks[1].ClientConfig.CABundle, validating.Webhooks[0].ClientConfig.CABundle}
}

// call checks what the API server would: the replica's certificate against each bundle. A replica that is not ready is not called.
func (c *cluster) call(k *Keeper, bundles [][]byte) error {
	if ready := k.Check(nil) == nil; !ready {
		return nil
	}
	serving, err := k.GetCertificate(nil)
	if err != nil {
		return err
	}
	for i, bundle := range bundles {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(bundle)
		if _, err := serving.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: c.clock.Now()}); err != nil {
			return fmt.Errorf("webhook %d: %w", i, err)
		}
	}
	return nil
}

func TestReplicasShareOneCertificate(t *testing.T) {
	c := newCluster(t, "share")
	a, b := c.replica(), c.replica()
	if a.Check(nil) == nil {
		t.Error("ready without a certificate")
	}
	if _, err := a.GetCertificate(nil); err == nil {
		t.Error("there is a certificate before the first pass")
	}
	for _, k := range []*Keeper{a, b, a, b} {
		c.reconcile(k)
	}
	for _, k := range []*Keeper{a, b} {
		if err := errors.Join(k.Check(nil), c.call(k, c.bundles())); err != nil {
			t.Error(err)
		}
	}
	if !a.current.equal(b.current) {
		t.Error("the replicas serve different certificates")
	}
	version := c.secret().ResourceVersion
	c.reconcile(a)
	if again := c.secret().ResourceVersion; again != version {
		t.Error("a pass with nothing to do wrote the Secret")
	}
}

func TestSecretIsRestored(t *testing.T) {
	for _, tt := range []struct {
		reason string
		spoil  func(c *cluster)
	}{
		{reason: "deleted", spoil: (*cluster).deleteSecret},
		{reason: "emptied", spoil: func(c *cluster) {
			secret := c.secret()
			secret.Data = map[string][]byte{corev1.TLSCertKey: {}, corev1.TLSPrivateKeyKey: {}}
			if err := api.Update(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
		}},
		{reason: "key-damaged", spoil: func(c *cluster) {
			secret := c.secret()
			secret.Data[corev1.TLSPrivateKeyKey] = []byte("nonsense")
			if err := api.Update(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			c := newCluster(t, "restored-"+tt.reason)
			a, b := c.replica(), c.replica()
			c.reconcile(a)
			c.reconcile(b)
			before := c.secret().Data
			tt.spoil(c)
			c.reconcile(b)
			c.reconcile(a)
			if diff := cmp.Diff(before, c.secret().Data); diff != "" {
				t.Errorf("the Secret came back with another certificate:\n%s", diff)
			}
		})
	}
}

func TestRenewal(t *testing.T) {
	c := newCluster(t, "renewal")
	a := c.replica()
	c.reconcile(a)
	old := a.current
	c.clock.Step(lifetime - renewal - time.Minute)
	if c.reconcile(a); !a.current.equal(old) || a.next != nil {
		t.Fatal("renewed a minute too early")
	}
	c.clock.Step(2 * time.Minute)
	if wait := c.reconcile(a); wait != settle || !a.current.equal(old) {
		t.Fatalf("after renewal the old certificate is served: %t, and the next look is in %s", a.current.equal(old), wait)
	}
	if err := c.call(a, c.bundles()); err != nil {
		t.Fatal(err)
	}
	c.clock.Step(settle - time.Second)
	if wait := c.reconcile(a); wait != time.Second || !a.current.equal(old) {
		t.Fatalf("a second before it has settled, the next look is in %s", wait)
	}
	c.clock.Step(time.Second)
	if c.reconcile(a); a.current.equal(old) {
		t.Fatal("the old certificate is still served")
	}
	if err := c.call(a, c.bundles()); err != nil {
		t.Fatal(err)
	}
	fresh := c.replica()
	if c.reconcile(fresh); !fresh.current.equal(a.current) {
		t.Fatal("a replica that starts later serves another certificate")
	}
}

// TestNoCallFails lets three replicas, a clock that runs over years, and somebody who deletes Secrets and restarts replicas act in random
// order, and has an API server call that sees every change of its configurations up to nine seconds late.
func TestNoCallFails(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	c := newCluster(t, "random")
	replicas := []*Keeper{c.replica(), c.replica(), c.replica()}
	type seen struct {
		at      time.Time
		bundles [][]byte
	}
	history := []seen{{c.clock.Now(), c.bundles()}}
	for step := range 400 {
		switch k := random.IntN(len(replicas)); random.IntN(8) {
		case 0:
			c.deleteSecret()
		case 1:
			replicas[k] = c.replica()
		case 2:
			// Years pass in leaps that leave every replica time to look: that is what recheck is for.
			c.clock.Step(time.Duration(random.Int64N(int64(40 * 24 * time.Hour))))
		case 3:
			c.clock.Step(time.Duration(random.Int64N(int64(5 * time.Second))))
		default:
			c.reconcile(replicas[k])
		}
		history = append(history, seen{c.clock.Now(), c.bundles()})
		for _, k := range replicas {
			for i := len(history) - 1; i >= 0; i-- {
				// An entry is in force until the API server sees the next one.
				if i+1 < len(history) && c.clock.Now().Sub(history[i+1].at) > 9*time.Second {
					break
				}
				if len(history[i].bundles[0]) == 0 {
					continue // before the first installation there is nothing to break
				}
				if err := c.call(k, history[i].bundles); err != nil {
					t.Fatalf("step %d, configuration %d of %d: %v", step, i, len(history), err)
				}
			}
		}
	}
}

func TestTrust(t *testing.T) {
	now := time.Now()
	authority := func(at time.Time) []byte {
		p, err := newPair([]string{host}, at)
		if err != nil {
			t.Fatal(err)
		}
		return p.authority
	}
	bundle, newest := []byte(nil), []byte(nil)
	for i := range maxAuthorities + 2 {
		newest = authority(now.Add(time.Duration(i) * time.Minute))
		var changed bool
		if bundle, changed = trust(bundle, newest, now); !changed {
			t.Fatal("a new authority changed nothing")
		}
		if got, want := len(parseBundle(bundle)), min(i+1, maxAuthorities); got != want {
			t.Fatalf("%d authorities after %d additions, not %d", got, i+1, want)
		}
	}
	if again, changed := trust(bundle, newest, now); changed || string(again) != string(bundle) {
		t.Error("adding what is there changed something")
	}
	later := now.Add(lifetime + time.Hour)
	last := authority(later)
	bundle, _ = trust(bundle, last, later)
	if known := parseBundle(bundle); len(known) != 1 || string(bundle) != string(last) {
		t.Errorf("%d authorities are left when all but one have expired", len(known))
	}
	if got, changed := trust([]byte("nonsense"), last, later); !changed || string(got) != string(last) {
		t.Errorf("nonsense became %q", got)
	}
}

func TestConflictsAreNoErrors(t *testing.T) {
	for _, err := range []error{
		apierrors.NewConflict(corev1.Resource("secrets"), "x", errors.New("x")), apierrors.NewAlreadyExists(corev1.Resource("secrets"), "x"),
	} {
		k := New(Config{Names: []string{host}}, failing{api, err}, testingclock.NewFakeClock(time.Now()))
		result, got := k.Reconcile(t.Context(), reconcile.Request{})
		if got != nil || result.RequeueAfter == 0 {
			t.Errorf("%v became %v, %+v", err, got, result)
		}
	}
}

// failing fails every write.
type failing struct {
	client.Client
	err error
}

func (f failing) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return apierrors.NewNotFound(corev1.Resource("secrets"), "x")
}
func (f failing) Create(context.Context, client.Object, ...client.CreateOption) error { return f.err }
