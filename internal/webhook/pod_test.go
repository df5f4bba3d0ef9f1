// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject"
	"github.com/idempotency-dev/operator/internal/inject/injecttest"
	"github.com/idempotency-dev/operator/internal/policy"
)

// store stands in for the cache, to fail in the ways that a real one seldom does.
type store struct {
	client.Reader
	list func(context.Context) ([]v1alpha1.IdempotencyPolicy, error)
}

func (s store) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	items, err := s.list(ctx)
	wanted := (&client.ListOptions{}).ApplyOptions(options).FieldSelector
	for i := range items {
		if slices.ContainsFunc(policy.SelectorKeys(&items[i]), func(key string) bool { return wanted.Matches(fields.Set{selectorIndex: key}) }) {
			found := list.(*v1alpha1.IdempotencyPolicyList)
			found.Items = append(found.Items, items[i])
		}
	}
	return err
}

func holding(policies ...*v1alpha1.IdempotencyPolicy) store {
	return store{list: func(context.Context) ([]v1alpha1.IdempotencyPolicy, error) {
		var items []v1alpha1.IdempotencyPolicy
		for _, p := range policies {
			items = append(items, *p)
		}
		return items, nil
	}}
}

// told is an event that was recorded.
type told struct{ Kind, Name, Related, Type, Reason, Note string }

type recorder struct{ events []told }

func (r *recorder) Eventf(regarding, related runtime.Object, kind, reason, _, note string, args ...any) {
	event := told{Type: kind, Reason: reason, Note: fmt.Sprintf(note, args...)}
	if ref, ok := regarding.(*corev1.ObjectReference); ok {
		event.Kind, event.Name = ref.Kind, ref.Name
	}
	if ref, ok := related.(*corev1.ObjectReference); ok {
		event.Related = ref.Kind + "/" + ref.Name
	}
	r.events = append(r.events, event)
}

// desk is a handler with everything that it reports.
type desk struct {
	handler *podHandler
	events  *recorder
	log     *bytes.Buffer
}

func newDesk(t testing.TB, policies client.Reader, enforce bool) desk {
	t.Helper()
	d := desk{events: &recorder{}, log: &bytes.Buffer{}}
	reporter, err := newReporter(d.events, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	d.handler = &podHandler{
		policies: policies, decoder: decoder(), reporter: reporter, log: slog.New(slog.NewTextHandler(d.log, nil)),
		image: injecttest.DefaultImage, namespace: "idempotency-system", enforce: enforce,
	}
	return d
}

func (d desk) counted(outcome outcome, reason inject.Reason) float64 {
	return testutil.ToFloat64(d.handler.reporter.pods.WithLabelValues(string(outcome), string(reason)))
}

// creation is the request to create the pod, as the API server sends it.
func creation(t testing.TB, pod *corev1.Pod) admission.Request {
	t.Helper()
	raw, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	return admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UID: "1", Operation: admissionv1.Create, Namespace: "shop",
		Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
		Object:   runtime.RawExtension{Raw: raw},
	}}
}

func replicaSetPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "payments-6d5f8-", Labels: map[string]string{"app": "payments"},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "example.com/v1", Kind: "Watcher", Name: "watcher", UID: "w"},
				{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "payments-6d5f8", UID: "r", Controller: ptr.To(true)},
			},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app:1", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}}},
	}
}

// TestVerdicts: what becomes of a pod, unlabelled and enforced.
func TestVerdicts(t *testing.T) {
	condition := func(reason string, observed int64) *v1alpha1.IdempotencyPolicy {
		p := injecttest.Policy()
		p.Generation = 2
		p.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: reason, Message: "because", ObservedGeneration: observed,
		}}
		return p
	}
	deleted := injecttest.Policy()
	deleted.DeletionTimestamp = ptr.To(metav1.Unix(1, 0))
	for _, row := range []struct {
		why      string
		policy   *v1alpha1.IdempotencyPolicy
		pod      func(*corev1.Pod)
		request  func(*admission.Request)
		reason   inject.Reason
		outcome  outcome
		enforced outcome
	}{
		{why: "an ordinary pod", reason: reasonInjected, outcome: injected, enforced: injected},
		{why: "no policy selects it", pod: func(p *corev1.Pod) { p.Labels["app"] = "orders" }, reason: reasonNoPolicy, outcome: skipped, enforced: denied},
		{why: "its policy is being deleted", policy: deleted, reason: reasonNoPolicy, outcome: skipped, enforced: denied},
		{why: "it opted out", pod: func(p *corev1.Pod) { p.Labels[v1alpha1.InjectionLabel] = "disabled" }, reason: reasonOptedOut, outcome: skipped, enforced: denied},
		{why: "it uses the node's network", pod: func(p *corev1.Pod) { p.Spec.HostNetwork = true }, reason: inject.HostNetwork, outcome: unprotected, enforced: denied},
		{why: "its policy is invalid", policy: condition(v1alpha1.ReasonInvalid, 2), reason: inject.PolicyInvalid, outcome: unprotected, enforced: denied},
		{why: "its policy was invalid before its last change", policy: condition(v1alpha1.ReasonInvalid, 1), reason: reasonInjected, outcome: injected, enforced: injected},
		{why: "its entries would be another policy's", policy: condition(v1alpha1.ReasonKeyspaceTaken, 2), reason: reasonPolicyNotAccepted, outcome: unprotected, enforced: denied},
		{why: "its Secret is missing, and the pod waits for it", policy: condition(v1alpha1.ReasonSecretNotFound, 2), reason: reasonInjected, outcome: injected, enforced: injected},
		{why: "its Secret lacks the key, and the pod waits for it", policy: condition(v1alpha1.ReasonSecretKeyMissing, 2), reason: reasonInjected, outcome: injected, enforced: injected},
		{why: "its encryption keys cannot be read, and the sidecar executes nothing until they can", policy: condition(v1alpha1.ReasonEncryptionKeyInvalid, 2), reason: reasonInjected, outcome: injected, enforced: injected},
		{why: "its policy conflicts with an older one over other pods", policy: condition(v1alpha1.ReasonConflicted, 2), reason: reasonInjected, outcome: injected, enforced: injected},
		{why: "the kubelet's own static pod", pod: func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }, reason: reasonMirrorPod, outcome: skipped, enforced: skipped},
		{why: "kube-system", request: func(r *admission.Request) { r.Namespace = "kube-system" }, reason: reasonSystemNamespace, outcome: skipped, enforced: skipped},
		{why: "the operator's own namespace", request: func(r *admission.Request) { r.Namespace = "idempotency-system" }, reason: reasonSystemNamespace, outcome: skipped, enforced: skipped},
		{why: "a change of its labels", request: func(r *admission.Request) { r.Operation = admissionv1.Update }, reason: reasonNotPodCreation, outcome: skipped, enforced: skipped},
		{why: "an ephemeral container", request: func(r *admission.Request) { r.SubResource = "ephemeralcontainers" }, reason: reasonNotPodCreation, outcome: skipped, enforced: skipped},
		{why: "not a pod", request: func(r *admission.Request) { r.Resource.Resource = "services" }, reason: reasonNotPodCreation, outcome: skipped, enforced: skipped},
		{why: "bytes that are no pod", request: func(r *admission.Request) { r.Object.Raw = []byte("{") }, reason: reasonInternalError, outcome: unprotected, enforced: denied},
		{why: "no bytes at all", request: func(r *admission.Request) { r.Object.Raw = nil }, reason: reasonInternalError, outcome: unprotected, enforced: denied},
	} {
		for _, path := range []struct {
			name    string
			enforce bool
			want    outcome
		}{{PodPath, false, row.outcome}, {EnforcePath, true, row.enforced}} {
			t.Run(row.why+path.name, func(t *testing.T) {
				p := row.policy
				if p == nil {
					p = injecttest.Policy()
				}
				d, pod := newDesk(t, holding(p), path.enforce), replicaSetPod()
				if row.pod != nil {
					row.pod(pod)
				}
				req := creation(t, pod)
				if row.request != nil {
					row.request(&req)
				}
				d.check(t, d.handler.Handle(t.Context(), req), path.want, row.reason)
			})
		}
	}
}

// check compares the answer, and what was reported, with what the outcome stands for.
func (d desk) check(t *testing.T, response admission.Response, want outcome, reason inject.Reason) {
	t.Helper()
	if allowed := want != denied; response.Allowed != allowed {
		t.Errorf("allowed = %v, want %v: %v", response.Allowed, allowed, response.Result)
	}
	if patched := len(response.Patches) > 0; patched != (want == injected) || patched != (response.PatchType != nil) {
		t.Errorf("%d patches of type %v for a pod that is %s", len(response.Patches), response.PatchType, want)
	}
	if warned := len(response.Warnings) > 0; warned != (want == unprotected) {
		t.Errorf("warnings %q for a pod that is %s", response.Warnings, want)
	}
	if want == denied && (!strings.Contains(response.Result.Message, string(reason)) || !strings.Contains(response.Result.Message, v1alpha1.EnforceLabel)) {
		t.Errorf("the message names neither reason nor label: %s", response.Result.Message)
	}
	if got := d.counted(want, reason); got != 1 {
		t.Errorf("counted %v pods as %s/%s, want 1", got, want, reason)
	}
	for _, event := range d.events.events {
		if event.Type != corev1.EventTypeWarning || event.Reason != string(reason) {
			t.Errorf("event %+v, want a warning with the reason %s", event, reason)
		}
	}
	missing := want == unprotected || want == denied
	if told := len(d.events.events); told > 1 || told == 1 && !missing || told == 0 && missing && reason != reasonInternalError {
		t.Errorf("events %+v for a pod that is %s", d.events.events, want)
	}
}

// TestEnforceLabelOnTheOtherPath: the label decides even where the webhook's configuration lost its object selector.
func TestEnforceLabelOnTheOtherPath(t *testing.T) {
	for _, row := range []struct {
		value string
		want  outcome
	}{{"true", denied}, {"false", unprotected}} {
		pod := replicaSetPod()
		pod.Labels[v1alpha1.EnforceLabel], pod.Spec.HostNetwork = row.value, true
		d := newDesk(t, holding(injecttest.Policy()), false)
		d.check(t, d.handler.Handle(t.Context(), creation(t, pod)), row.want, inject.HostNetwork)
	}
}

// TestOwnFaults: whatever goes wrong in here, an unlabelled pod starts as it is and an enforced one does not start.
func TestOwnFaults(t *testing.T) {
	for _, row := range []struct {
		why  string
		list func(context.Context) ([]v1alpha1.IdempotencyPolicy, error)
		says string
	}{
		{"the cache fails", func(context.Context) ([]v1alpha1.IdempotencyPolicy, error) { return nil, errors.New("broken") }, "broken"},
		{"the cache never fills", func(ctx context.Context) ([]v1alpha1.IdempotencyPolicy, error) { <-ctx.Done(); return nil, ctx.Err() }, "deadline"},
		{"the handler panics", func(context.Context) ([]v1alpha1.IdempotencyPolicy, error) { panic("bug") }, "bug"},
	} {
		for _, path := range []struct {
			enforce bool
			want    outcome
		}{{false, unprotected}, {true, denied}} {
			t.Run(fmt.Sprintf("%s/%s", row.why, path.want), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					d := newDesk(t, store{list: row.list}, path.enforce)
					response := d.handler.Handle(t.Context(), creation(t, replicaSetPod()))
					d.check(t, response, path.want, reasonInternalError)
					if len(d.events.events) != 1 || !strings.Contains(d.events.events[0].Note, row.says) {
						t.Errorf("events %+v, want one that says %q", d.events.events, row.says)
					}
					if path.want == denied && response.Result.Code != http.StatusInternalServerError {
						t.Errorf("code %d: our own fault is not the pod's", response.Result.Code)
					}
					if !strings.Contains(d.log.String(), "level=ERROR") {
						t.Errorf("nothing was logged: %s", d.log)
					}
				})
			})
		}
	}
}

// TestDryRun has the same answer and no side effect.
func TestDryRun(t *testing.T) {
	for _, network := range []bool{false, true} {
		pod := replicaSetPod()
		pod.Spec.HostNetwork = network
		wet, dry := newDesk(t, holding(injecttest.Policy()), false), newDesk(t, holding(injecttest.Policy()), false)
		want := wet.handler.Handle(t.Context(), creation(t, pod))
		req := creation(t, pod)
		req.DryRun = ptr.To(true)
		got := dry.handler.Handle(t.Context(), req)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the answer to a dry run is another (-wet +dry):\n%s", diff)
		}
		if count := testutil.CollectAndCount(dry.handler.reporter.pods); count != 0 || len(dry.events.events) != 0 {
			t.Errorf("a dry run left %d counters and the events %v", count, dry.events.events)
		}
	}
}

// TestTwice: the handler's own output needs nothing more.
func TestTwice(t *testing.T) {
	d, pod := newDesk(t, holding(injecttest.Policy()), false), replicaSetPod()
	req := creation(t, pod)
	first := d.handler.Handle(t.Context(), req)
	req.Object.Raw = apply(t, req.Object.Raw, first.Patches)
	second := d.handler.Handle(t.Context(), req)
	d.check(t, second, skipped, reasonAlreadyInjected)
}

// TestEventRegards the owner that controls the pod, else any owner, else the policy.
func TestEventRegards(t *testing.T) {
	note := "pod payments-6d5f8-* was created without the sidecar: the pod uses the node's network"
	for _, row := range []struct {
		why  string
		pod  func(*corev1.Pod)
		want told
	}{
		{"a controller", func(*corev1.Pod) {}, told{Kind: "ReplicaSet", Name: "payments-6d5f8"}},
		{"an owner that does not control", func(p *corev1.Pod) { p.OwnerReferences = p.OwnerReferences[:1] }, told{Kind: "Watcher", Name: "watcher"}},
		{"nobody", func(p *corev1.Pod) { p.OwnerReferences = nil }, told{Kind: "IdempotencyPolicy", Name: "payments"}},
	} {
		t.Run(row.why, func(t *testing.T) {
			pod := replicaSetPod()
			pod.Spec.HostNetwork = true
			row.pod(pod)
			d := newDesk(t, holding(injecttest.Policy()), false)
			d.handler.Handle(t.Context(), creation(t, pod))
			if len(d.events.events) != 1 {
				t.Fatalf("events %+v, want one", d.events.events)
			}
			got := d.events.events[0]
			if got.Kind != row.want.Kind || got.Name != row.want.Name || got.Related != "IdempotencyPolicy/payments" || !strings.HasPrefix(got.Note, note) {
				t.Errorf("event %+v, want %+v and %q", got, row.want, note)
			}
		})
	}
}

// TestNote fits the API server's bound, and does not cut a character in two.
func TestNote(t *testing.T) {
	for _, row := range []struct{ note, end string }{
		{strings.Repeat("a", maxNote), "a"},
		{strings.Repeat("a", maxNote+1), "..."},
		{strings.Repeat("é", maxNote), "..."},
		{"a" + strings.Repeat("é", maxNote), "..."},
	} {
		got := shorten(row.note)
		if len(got) > maxNote || len(got) < maxNote-1 || strings.ToValidUTF8(got, "") != got || !strings.HasSuffix(got, row.end) {
			t.Errorf("%d bytes became %d: %q", len(row.note), len(got), got[len(got)-8:])
		}
	}
}

// TestOldestPolicyWins when two select the pod.
func TestOldestPolicyWins(t *testing.T) {
	older, newer := injecttest.Policy(), injecttest.Policy()
	older.Name, older.CreationTimestamp = "older", metav1.Unix(1, 0)
	newer.Name, newer.CreationTimestamp = "newer", metav1.Unix(2, 0)
	d := newDesk(t, holding(newer, older), false)
	response := d.handler.Handle(t.Context(), creation(t, replicaSetPod()))
	pod, err := decode(apply(t, creation(t, replicaSetPod()).Object.Raw, response.Patches))
	if err != nil || pod.Annotations[v1alpha1.PolicyAnnotation] != "older" {
		t.Errorf("annotations %v, %v, want those of the older policy", pod.Annotations, err)
	}
}
