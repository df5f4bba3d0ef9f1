// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/inject"
	"github.com/idempotency-dev/operator/internal/inject/injecttest"
)

// restricted puts a pod within the restricted Pod Security Standard.
func restricted(pod *corev1.Pod) *corev1.Pod {
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsNonRoot: ptr.To(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].SecurityContext = &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		}
	}
	return pod
}

// TestRedirectNeedsACapability: where the namespace forbids it, the pod starts without the sidecar rather than not at all.
func TestRedirectNeedsACapability(t *testing.T) {
	c := theCluster(t)
	for level, reason := range map[string]inject.Reason{"restricted": inject.PodSecurity, "baseline": inject.PodSecurity, "privileged": ""} {
		namespace := c.namespace(t, optedIn(inject.PodSecurityLabel, level))
		p := injecttest.Policy()
		p.Spec.Target.Interception = v1alpha1.InterceptRedirect
		c.policy(t, namespace, p)
		eventually(t, func() error {
			return c.cache.Get(t.Context(), client.ObjectKey{Name: namespace}, namespaceMetadata())
		})
		pod := restricted(podIn(namespace))
		var warnings []string
		if err := c.warned(t, &warnings).Create(t.Context(), pod); err != nil {
			t.Errorf("%s: %v", level, err)
		}
		traffic, carries := inject.TrafficOf(pod)
		if carries != (reason == "") || reason != "" && (len(warnings) != 1 || !strings.Contains(warnings[0], string(reason))) {
			t.Errorf("%s: traffic %+v, warnings %q, want the reason %q", level, traffic, warnings, reason)
		}
	}
}

func podIn(namespace string) *corev1.Pod {
	pod := replicaSetPod()
	pod.Namespace, pod.OwnerReferences = namespace, pod.OwnerReferences[1:]
	return pod
}

// TestRestrictedNamespace: a pod with a generated name gets the sidecar, and both stay within the restricted Pod Security Standard.
func TestRestrictedNamespace(t *testing.T) {
	c := theCluster(t)
	namespace := c.namespace(t, optedIn("pod-security.kubernetes.io/enforce", "restricted"))
	c.policy(t, namespace, injecttest.Policy())
	pod := restricted(podIn(namespace))
	if err := c.client.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	want := inject.Traffic{Name: "http", App: 8080, Sidecar: 15600, Admin: 15601}
	if got, ok := inject.TrafficOf(pod); !ok || got != want {
		t.Errorf("traffic %+v, %v, want %+v", got, ok, want)
	}
	if got := pod.Spec.Containers[0].Ports[0].Name; got != "app-http" {
		t.Errorf("the app's port is named %s, want app-http", got)
	}
	if first := pod.Spec.InitContainers[0]; first.Name != inject.ContainerName {
		t.Errorf("the first init container is %s, want the sidecar", first.Name)
	}
	if p := injecttest.Policy(); !inject.Carries(inject.FromPolicy(p, injecttest.DefaultImage), pod) {
		t.Errorf("annotations %v are not those of the policy's sidecar", pod.Annotations)
	}
}

// TestRawRequest: no name and no namespace in the object, and a field that no server knows.
func TestRawRequest(t *testing.T) {
	c := theCluster(t)
	namespace := c.namespace(t, optedIn())
	c.policy(t, namespace, injecttest.Policy())
	clientset, err := kubernetes.NewForConfig(c.config)
	if err != nil {
		t.Fatal(err)
	}
	body := `{"apiVersion":"v1","kind":"Pod","futureTop":1,"metadata":{"generateName":"payments-","labels":{"app":"payments"}},
		"spec":{"futureSpec":true,"containers":[{"name":"app","image":"app:1","ports":[{"name":"http","containerPort":8080}]}]}}`
	pod := &corev1.Pod{}
	if err := clientset.CoreV1().RESTClient().Post().Namespace(namespace).Resource("pods").Body([]byte(body)).Do(t.Context()).Into(pod); err != nil {
		t.Fatal(err)
	}
	if _, ok := inject.TrafficOf(pod); !ok || pod.Namespace != namespace {
		t.Errorf("pod %s/%s has no sidecar: %v", pod.Namespace, pod.Name, pod.Annotations)
	}
}

// TestOtherInjector: beside another injector, called before or after us, the pod ends up with both, and nothing collides.
func TestOtherInjector(t *testing.T) {
	c := theCluster(t)
	for _, order := range []string{"a-mesh", "z-mesh"} {
		t.Run(order, func(t *testing.T) {
			namespace := c.namespace(t, optedIn(foreignLabel, order))
			c.policy(t, namespace, injecttest.Policy())
			pod := podIn(namespace)
			if err := c.client.Create(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			traffic, ok := inject.TrafficOf(pod)
			if !ok || traffic.Name != "http" || traffic.App != 8080 {
				t.Fatalf("traffic %+v, %v", traffic, ok)
			}
			if names := names(pod); cmp.Diff([]string{"app", "idempotency-proxy", "mesh", "shipper"}, names) != "" {
				t.Errorf("containers %v", names)
			}
			ports := map[int32]string{}
			for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
				for _, port := range container.Ports {
					if other := ports[port.ContainerPort]; other != "" {
						t.Errorf("%s and %s both listen on %d", other, container.Name, port.ContainerPort)
					}
					ports[port.ContainerPort] = container.Name
				}
			}
			if got := len(pod.Spec.Volumes); got != 4 {
				t.Errorf("%d volumes, want ours and the service account's: %v", got, pod.Spec.Volumes)
			}
		})
	}
}

func names(pod *corev1.Pod) []string {
	set := map[string]bool{}
	for _, container := range append(append([]corev1.Container{}, pod.Spec.InitContainers...), pod.Spec.Containers...) {
		set[container.Name] = true
	}
	var list []string
	for _, name := range []string{"app", "idempotency-proxy", "mesh", "shipper"} {
		if set[name] {
			list = append(list, name)
		}
	}
	return list
}

// TestUnprotected: a pod that cannot carry the sidecar starts as it is, and its owner is told; a dry run tells nobody.
func TestUnprotected(t *testing.T) {
	c := theCluster(t)
	namespace := c.namespace(t, optedIn())
	c.policy(t, namespace, injecttest.Policy())
	events := func() []eventsv1.Event {
		var list eventsv1.EventList
		if err := c.client.List(t.Context(), &list, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
		return list.Items
	}
	pod := podIn(namespace)
	pod.Spec.HostNetwork = true
	before := c.count(t, unprotected, inject.HostNetwork)
	if err := c.client.Create(t.Context(), pod.DeepCopy(), client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	if after := c.count(t, unprotected, inject.HostNetwork); after != before {
		t.Errorf("a dry run was counted: %v, then %v", before, after)
	}
	var warnings []string
	if err := c.warned(t, &warnings).Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if len(pod.Spec.InitContainers) != 0 || len(pod.Annotations) != 0 || pod.Spec.Containers[0].Ports[0].Name != "http" {
		t.Errorf("the pod was changed: %v", pod)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], string(inject.HostNetwork)) {
		t.Errorf("warnings %q, want one that names the reason", warnings)
	}
	if after := c.count(t, unprotected, inject.HostNetwork); after != before+1 {
		t.Errorf("counted %v, then %v, want one more", before, after)
	}
	// The dry run came first: had it told anybody, its event would be here by the time that the other one is.
	eventually(t, func() error {
		if found := events(); len(found) != 1 {
			return fmt.Errorf("%d events, want 1: %v", len(found), found)
		}
		return nil
	})
	event := events()[0]
	if event.Regarding.Kind != "ReplicaSet" || event.Regarding.Name != "payments-6d5f8" || event.Reason != "HostNetwork" || event.Type != corev1.EventTypeWarning || event.Series != nil {
		t.Errorf("event %+v, want a warning at the ReplicaSet", event)
	}
}

// count reads the metric of a verdict.
func (c *cluster) count(t *testing.T, outcome outcome, reason inject.Reason) float64 {
	t.Helper()
	families, err := c.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			if family.GetName() == "idempotency_webhook_pods_total" && labels["outcome"] == string(outcome) && labels["reason"] == string(reason) {
				return metric.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// warned is a client that keeps the API server's warnings.
func (c *cluster) warned(t *testing.T, warnings *[]string) client.Client {
	t.Helper()
	config := rest.CopyConfig(c.config)
	config.WarningHandler = keep{warnings}
	kept, err := client.New(config, client.Options{Scheme: c.client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return kept
}

type keep struct{ warnings *[]string }

func (k keep) HandleWarningHeader(_ int, _, text string) { *k.warnings = append(*k.warnings, text) }

// TestEnforced: a pod labelled enforced starts with its sidecar or not at all, and the answer says why.
func TestEnforced(t *testing.T) {
	c := theCluster(t)
	namespace := c.namespace(t, optedIn())
	c.policy(t, namespace, injecttest.Policy())
	for _, row := range []struct {
		why    string
		change func(*corev1.Pod)
		says   string
	}{
		{"it can carry the sidecar", func(*corev1.Pod) {}, ""},
		{"it uses the node's network", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, "remove hostNetwork"},
		{"no policy selects it", func(p *corev1.Pod) { p.Labels["app"] = "orders" }, "no IdempotencyPolicy"},
		{"it opts out as well", func(p *corev1.Pod) { p.Labels[v1alpha1.InjectionLabel] = v1alpha1.InjectionDisabled }, "contradicts"},
	} {
		t.Run(row.why, func(t *testing.T) {
			pod := podIn(namespace)
			pod.Labels[v1alpha1.EnforceLabel] = "true"
			row.change(pod)
			err := c.client.Create(t.Context(), pod)
			if row.says == "" {
				if _, ok := inject.TrafficOf(pod); err != nil || !ok {
					t.Errorf("created with %v and sidecar %v", err, ok)
				}
				return
			}
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), row.says) || !strings.Contains(err.Error(), v1alpha1.EnforceLabel) {
				t.Errorf("error %v, want a refusal that says %q", err, row.says)
			}
		})
	}
}

// TestLeftAlone: pods that are none of ours keep every byte that they would have without us, and a change of labels injects nothing.
func TestLeftAlone(t *testing.T) {
	c := theCluster(t)
	for _, row := range []struct {
		why    string
		labels map[string]string
		change func(*corev1.Pod)
	}{
		{"the namespace is not opted in", nil, func(*corev1.Pod) {}},
		{"the pod opts out", optedIn(), func(p *corev1.Pod) { p.Labels[v1alpha1.InjectionLabel] = v1alpha1.InjectionDisabled }},
		{"no policy selects the pod", optedIn(), func(p *corev1.Pod) { p.Labels["app"] = "orders" }},
	} {
		t.Run(row.why, func(t *testing.T) {
			namespace := c.namespace(t, row.labels)
			c.policy(t, namespace, injecttest.Policy())
			pod := podIn(namespace)
			row.change(pod)
			if err := c.client.Create(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			pod.Labels["app"], pod.Labels[v1alpha1.InjectionLabel] = "payments", ""
			if err := c.client.Update(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			if len(pod.Spec.InitContainers) != 0 || len(pod.Annotations) != 0 || pod.Spec.Containers[0].Ports[0].Name != "http" {
				t.Errorf("the pod was changed: %v", pod)
			}
		})
	}
}

// TestEveryCaseIsAccepted: whatever pod the API server takes without us, it takes with us, and the sidecar is in it unless it was refused.
func TestEveryCaseIsAccepted(t *testing.T) {
	c := theCluster(t)
	plain := c.namespace(t, nil)
	common := c.namespace(t, optedIn())
	c.policy(t, common, injecttest.Policy())
	for _, pod := range injecttest.Cases(t, injectionCases) {
		t.Run(pod.Name, func(t *testing.T) {
			namespace := common
			if len(pod.Spec) > 0 {
				namespace = c.namespace(t, optedIn())
				if p := pod.Policy(t); !c.accepts(t, namespace, p) {
					return
				}
			}
			without, with := c.try(t, plain, pod), c.try(t, namespace, pod)
			if (without.err == nil) != (with.err == nil) {
				t.Fatalf("%s: without us %v, with us %v", pod.Why, without.err, with.err)
			}
			refused := strings.HasPrefix(pod.Name, "refused-")
			if with.err != nil {
				if !refused {
					t.Errorf("the API server never takes this pod: %v", with.err)
				}
				return
			}
			if carries := with.pod.Annotations[v1alpha1.PolicyAnnotation] == "payments" && inject.Carries(pod.Sidecar(t), with.pod); carries == refused {
				t.Errorf("%s: carries the sidecar: %v", pod.Why, carries)
			}
		})
	}
}

// accepts creates the policy; a policy that can give no pod a sidecar is refused by its validation already.
func (c *cluster) accepts(t *testing.T, namespace string, p *v1alpha1.IdempotencyPolicy) bool {
	t.Helper()
	p.Namespace = namespace
	err := c.client.Create(t.Context(), p, client.DryRunAll)
	if apierrors.IsInvalid(err) {
		return false
	}
	p.ResourceVersion, p.UID = "", ""
	c.policy(t, namespace, p)
	return true
}

type attempt struct {
	pod *corev1.Pod
	err error
}

// try creates the pod as a dry run, from its raw bytes.
func (c *cluster) try(t *testing.T, namespace string, pod injecttest.Case) attempt {
	t.Helper()
	config := rest.CopyConfig(c.config)
	config.WarningHandler = rest.NoWarnings{}
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	if err := json.Unmarshal(pod.Pod, &object); err != nil {
		t.Fatal(err)
	}
	object["apiVersion"], object["kind"] = "v1", "Pod"
	// No namespace here has another service account.
	delete(object["spec"].(map[string]any), "serviceAccountName")
	body, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	out := &corev1.Pod{}
	err = clientset.CoreV1().RESTClient().Post().Namespace(namespace).Resource("pods").
		Param("dryRun", metav1.DryRunAll).Body(body).Do(t.Context()).Into(out)
	return attempt{pod: out, err: err}
}

// TestPolicyAdmission: what cannot work is refused with the field named, also as an update; a finalizer comes off at any time.
func TestPolicyAdmission(t *testing.T) {
	c := theCluster(t)
	namespace := c.namespace(t, nil)
	p := injecttest.Policy()
	p.Finalizers = []string{v1alpha1.Finalizer}
	c.policy(t, namespace, p)
	broken := p.DeepCopy()
	broken.Spec.Routes = append(broken.Spec.Routes, v1alpha1.Route{Name: "again", Methods: []v1alpha1.Method{"POST"}, Path: "/payments"})
	if err := c.client.Update(t.Context(), broken); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.routes[1]") {
		t.Errorf("error %v, want one that names spec.routes[1]", err)
	}
	if err := c.client.Delete(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
		t.Fatal(err)
	}
	p.Finalizers = nil
	if err := c.client.Update(t.Context(), p); err != nil {
		t.Errorf("a finalizer cannot be removed: %v", err)
	}
}
