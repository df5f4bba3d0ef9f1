// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionreviewv1 "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/policy"
	podwebhook "github.com/idempotency-dev/operator/internal/webhook"
)

const account = "system:serviceaccount:idempotency-system:" + name

// right is one verb on one resource, in one namespace or in all (""), on one object or on all ("").
type right struct{ namespace, group, resource, verb, name string }

func (r right) String() string {
	return fmt.Sprintf("%s %s.%s %q in namespace %q", r.verb, r.resource, r.group, r.name, r.namespace)
}

// covers reports whether r is enough for a request that needs just need.
func (r right) covers(need right) bool {
	return (r.namespace == "" || r.namespace == need.namespace) && (r.name == "" || r.name == need.name) &&
		r.group == need.group && r.resource == need.resource && r.verb == need.verb
}

// rightsIn takes rules apart.
func rightsIn(namespace string, rules []rbacv1.PolicyRule) []right {
	var rights []right
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					for _, object := range append(rule.ResourceNames, make([]string, max(0, 1-len(rule.ResourceNames)))...) {
						rights = append(rights, right{namespace, group, resource, verb, object})
					}
				}
			}
		}
	}
	return rights
}

// rules are the opposite.
func rulesOf(namespace string, rights []right) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for _, r := range rights {
		if r.namespace != namespace {
			continue
		}
		rule := rbacv1.PolicyRule{APIGroups: []string{r.group}, Resources: []string{r.resource}, Verbs: []string{r.verb}}
		if r.name != "" {
			rule.ResourceNames = []string{r.name}
		}
		rules = append(rules, rule)
	}
	return rules
}

// audited makes an API server write down who asks for what.
func audited(t *testing.T) (change func(*envtest.APIServer), file string) {
	t.Helper()
	dir := t.TempDir()
	file = filepath.Join(dir, "audit.log")
	text := "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n  users: [" + account + "]\n- level: None\n"
	if err := os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(s *envtest.APIServer) {
		s.Configure().
			Append("audit-policy-file", filepath.Join(dir, "policy.yaml")).Append("audit-log-path", file).Append("audit-log-mode", "blocking").
			// As on OpenShift: who owns an object may not be said by just anybody.
			Append("enable-admission-plugins", "OwnerReferencesPermissionEnforcement").
			// As before Kubernetes 1.34: a cache is filled by a list, not by a watch alone.
			Append("feature-gates", "WatchList=false")
	}, file
}

// requests are what the operator asked for so far, and how it was answered.
func requests(t *testing.T, file string) map[right][]int32 {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	asked := map[right][]int32{}
	for line := range bytes.Lines(text) {
		var event auditv1.Event
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // it is being written
		}
		if err := json.Unmarshal(line, &event); err != nil {
			t.Fatal(err)
		}
		if event.ObjectRef == nil || event.ResponseStatus == nil {
			continue
		}
		o := event.ObjectRef
		resource := o.Resource
		if o.Subresource != "" {
			resource += "/" + o.Subresource
		}
		need := right{o.Namespace, o.APIGroup, resource, event.Verb, o.Name}
		asked[need] = append(asked[need], event.ResponseStatus.Code)
		if event.Verb == "patch" && event.ResponseStatus.Code == http.StatusCreated {
			// Server-side apply of what is not there: the API server asks for this right, too.
			need.verb = "create"
			asked[need] = append(asked[need], http.StatusCreated)
		}
	}
	return asked
}

// TestRights shows that the rights in config/rbac, and those in config/secretsync, are enough, and that without any single one of them a request
// that the operator makes is forbidden. It runs the program with these rights, and brings about everything that the operator does in a cluster.
func TestRights(t *testing.T) {
	change, audit := audited(t)
	admin, kubeconfig := startAPI(t, change)
	o := operator(t, kubeconfig, "--secret-sync-from=idempotency-secrets")
	// seen waits until the operator has done something.
	seen := func(group, resource, verb string) {
		t.Helper()
		wait(t, o.ended, func() error {
			for need, codes := range requests(t, audit) {
				if need.group == group && need.resource == resource && need.verb == verb && done(codes) {
					return nil
				}
			}
			return fmt.Errorf("nobody has asked to %s %s.%s", verb, resource, group)
		})
	}
	wait(t, o.ended, func() error { return ready(t.Context(), "http://127.0.0.1:"+o.probes+"/readyz") })
	damageCertificate(t, admin)
	seen("", "secrets", "update")
	scrape(t, admin, o)
	lead(t, admin, o)
	seen("events.k8s.io", "events", "patch")
	o.stop()

	trusted(t, admin)
	if strings.Contains(o.out.String(), "change-me") {
		t.Error("the log has a part of a connection string")
	}
	granted, more := grantedRights(t), secretSyncRights(t, admin)
	asked := requests(t, audit)
	for need, codes := range asked {
		if slices.Contains(codes, http.StatusForbidden) {
			t.Errorf("the operator may not %s", need)
		}
	}
	if strings.Contains(o.out.String(), "forbidden") {
		t.Errorf("the operator lacks a right:\n%s", o.out)
	}
	needed := func(r right, rest []right) {
		t.Helper()
		need, found := onlyBy(r, rest, asked)
		if !found {
			t.Errorf("the operator may %s, and never does", r)
			return
		}
		take(t, admin, rest, need)
	}
	for i, r := range granted {
		needed(r, slices.Delete(slices.Clone(granted), i, i+1))
	}
	for i, r := range more {
		needed(r, slices.Concat(granted, slices.Delete(slices.Clone(more), i, i+1)))
	}
}

// done: it worked once.
func done(codes []int32) bool {
	return slices.ContainsFunc(codes, func(code int32) bool { return code < 300 })
}

// onlyBy returns a request that r covers and no other right does.
func onlyBy(r right, rest []right, asked map[right][]int32) (right, bool) {
	for need, codes := range asked {
		if done(codes) && r.covers(need) && !slices.ContainsFunc(rest, func(other right) bool { return other.covers(need) }) {
			return need, true
		}
	}
	return right{}, false
}

// take leaves the operator the rest of its rights, and waits until the API server refuses what it needs.
func take(t *testing.T, admin client.Client, rest []right, need right) {
	t.Helper()
	everywhere, here := &rbacv1.ClusterRole{}, &rbacv1.Role{}
	everywhere.Name, here.Name, here.Namespace = name, name, "idempotency-system"
	everywhere.Rules, here.Rules = rulesOf("", rest), rulesOf("idempotency-system", rest)
	for _, o := range []client.Object{everywhere, here} {
		if err := admin.Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	resource, subresource, _ := strings.Cut(need.resource, "/")
	wait(t, nil, func() error {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: account, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:idempotency-system", "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: need.namespace, Group: need.group, Resource: resource, Subresource: subresource, Verb: need.verb, Name: need.name,
			},
		}}
		if err := admin.Create(t.Context(), review); err != nil {
			return err
		}
		if review.Status.Allowed {
			return fmt.Errorf("without a right of its own the operator may %s: %s", need, review.Status.Reason)
		}
		return nil
	})
}

// grantedRights are those of config/default's roles for the operator's account.
func grantedRights(t *testing.T) []right {
	t.Helper()
	var everywhere rbacv1.ClusterRole
	var here rbacv1.Role
	find(t, &everywhere, "ClusterRole", name)
	find(t, &here, "Role", name)
	granted := append(rightsIn("", everywhere.Rules), rightsIn(here.Namespace, here.Rules)...)
	for _, r := range granted {
		if r.verb == "*" || r.resource == "*" || r.group == "*" {
			t.Errorf("a right is for everything: %s", r)
		}
	}
	return granted
}

// damageCertificate makes the operator write its certificate again.
func damageCertificate(t *testing.T, admin client.Client) {
	t.Helper()
	damaged := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "idempotency-system", Name: webhookCert}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"data":{"tls.crt":"AAAA"}}`))
	if err := admin.Patch(t.Context(), damaged, patch); err != nil {
		t.Fatal(err)
	}
}

// trusted: the API server knows whom to trust when it calls the webhooks.
func trusted(t *testing.T, admin client.Client) {
	t.Helper()
	mutating := &admissionv1.MutatingWebhookConfiguration{}
	if err := admin.Get(t.Context(), types.NamespacedName{Name: name}, mutating); err != nil {
		t.Fatal(err)
	}
	for i := range mutating.Webhooks {
		if len(mutating.Webhooks[i].ClientConfig.CABundle) == 0 {
			t.Errorf("webhook %s has no CA bundle", mutating.Webhooks[i].Name)
		}
	}
}

// scrape reads the operator's metrics as Prometheus does, with the rights that config/rbac has for that.
func scrape(t *testing.T, admin client.Client, o *operating) {
	t.Helper()
	reader := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "prometheus"}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "prometheus"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "idempotency-operator-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "prometheus"}},
	}
	token := &authenticationv1.TokenRequest{}
	for _, err := range []error{
		admin.Create(t.Context(), reader), admin.Create(t.Context(), binding), admin.SubResource("token").Create(t.Context(), reader, token),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	wait(t, o.ended, func() error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://127.0.0.1:"+o.metrics+"/metrics", nil)
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer "+token.Status.Token)
		response, err := trusting().Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	})
}

func validatingWebhook() *admissionv1.ValidatingWebhookConfiguration {
	return &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// lead takes a policy through its life.
func lead(t *testing.T, admin client.Client, o *operating) {
	t.Helper()
	ctx := t.Context()
	// The validating webhook cannot be reached in this test, and refuses every policy as long as it is there.
	if err := admin.Delete(ctx, validatingWebhook()); err != nil {
		t.Fatal(err)
	}
	for _, object := range installed(t, "samples") {
		object.SetNamespace("default")
		wait(t, o.ended, func() error { return client.IgnoreAlreadyExists(admin.Create(ctx, object)) })
	}
	p := &v1alpha1.IdempotencyPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "payments"}}
	change := func(patch string) {
		t.Helper()
		if err := admin.Patch(ctx, p, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	becomes := func(reason string) {
		t.Helper()
		wait(t, o.ended, func() error {
			if err := admin.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
				return err
			}
			for _, c := range p.Status.Conditions {
				if c.Type == v1alpha1.ConditionReady && c.Reason == reason && c.ObservedGeneration == p.Generation {
					return nil
				}
			}
			return fmt.Errorf("conditions are %v", p.Status.Conditions)
		})
	}
	becomes(v1alpha1.ReasonUnreachable) // the sample's database is nowhere
	if err := admin.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: policy.ConfigMapName(p)}, &corev1.ConfigMap{}); err != nil {
		t.Error(err)
	}
	change(`{"spec":{"store":{"postgres":{"dsnSecretRef":{"name":"nowhere"}}}}}`)
	becomes(v1alpha1.ReasonSecretNotFound)
	change(`{"spec":{"store":{"postgres":{"dsnSecretRef":{"name":"payments-db"}}}}}`)
	becomes(v1alpha1.ReasonUnreachable)
	review(t, o)
	review(t, o) // what happens again is told by a change of the first event
	change(`{"spec":{"retention":{"deletionPolicy":"Delete"}}}`)
	wait(t, o.ended, func() error {
		if err := admin.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		if len(p.Finalizers) == 0 {
			return errors.New("nothing holds the policy")
		}
		return nil
	})
	leadCluster(t, admin, o, p)
	if err := admin.Delete(ctx, p); err != nil {
		t.Fatal(err)
	}
	change(`{"metadata":{"annotations":{"idempotency.dev/release-keyspace":"true"}}}`)
	wait(t, o.ended, func() error {
		err := admin.Get(ctx, client.ObjectKeyFromObject(p), p)
		if err == nil {
			return errors.New("the policy is still there")
		}
		return client.IgnoreNotFound(err)
	})
}

// review calls the webhook, as an API server does that can reach it, for a pod that cannot carry the sidecar.
func review(t *testing.T, o *operating) {
	t.Helper()
	pod, err := json.Marshal(&corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "payments-1", Labels: map[string]string{"app": "payments"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "payments", UID: "of-payments"}},
		},
		Spec: corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Name: "app", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	call := &admissionreviewv1.AdmissionReview{Request: &admissionreviewv1.AdmissionRequest{
		UID: "of-the-call", Namespace: "default", Name: "payments-1", Operation: admissionreviewv1.Create,
		Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}, Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
		Object: runtime.RawExtension{Raw: pod},
	}}
	call.SetGroupVersionKind(admissionreviewv1.SchemeGroupVersion.WithKind("AdmissionReview"))
	text, err := json.Marshal(call)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://127.0.0.1:"+o.webhook+podwebhook.PodPath, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := trusting().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer := &admissionreviewv1.AdmissionReview{}
	if err := json.NewDecoder(response.Body).Decode(answer); err != nil || answer.Response == nil || len(answer.Response.Warnings) == 0 {
		t.Fatalf("the webhook answers %+v, %v, and no warning", answer.Response, err)
	}
}

// trusting does not ask for the operator's name: its certificates are made for a Service.
func trusting() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
}

// operating is the program, running.
type operating struct {
	probes, metrics, webhook string
	ended                    chan error
	out                      *transcript
	// stop ends it, and fails the test if it did not end well.
	stop func()
}

// operator runs the program with the kubeconfig's rights, and more arguments.
func operator(t *testing.T, kubeconfig string, more ...string) *operating {
	t.Helper()
	t.Setenv("KUBECONFIG", kubeconfig)
	o := &operating{probes: freePort(t), metrics: freePort(t), webhook: freePort(t), ended: make(chan error, 1), out: &transcript{}}
	ctx, cancel := context.WithCancel(context.Background())
	args := append([]string{
		"--namespace=idempotency-system", "--sidecar-image=proxy:1", "--leader-elect", "--metrics-bind-address=127.0.0.1:" + o.metrics,
		"--health-probe-bind-address=127.0.0.1:" + o.probes, "--webhook-port=" + o.webhook, "--drain-delay=0s",
	}, more...)
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.ended <- run(ctx, args, os.Getenv, o.out)
	}()
	o.stop = func() {
		t.Helper()
		cancel()
		<-done
		select {
		case err := <-o.ended:
			if err != nil {
				t.Errorf("the operator ended with %v", err)
			}
		default: // it was told before
		}
	}
	t.Cleanup(o.stop)
	return o
}
