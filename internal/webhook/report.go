// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

// maxNote is the bound of the API server on an event's note, in bytes.
const maxNote = 1024

// reporter makes verdicts known, once per request that is not a dry run.
type reporter struct {
	events events.EventRecorder
	pods   *prometheus.CounterVec
}

func newReporter(recorder events.EventRecorder, registerer prometheus.Registerer) (*reporter, error) {
	pods := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "idempotency_webhook_pods_total",
		Help: "Pods that the injection webhook answered for, by outcome (injected, skipped, unprotected, denied) and reason.",
	}, []string{"outcome", "reason"})
	if err := registerer.Register(pods); err != nil {
		return nil, fmt.Errorf("register metric idempotency_webhook_pods_total: %w", err)
	}
	return &reporter{events: recorder, pods: pods}, nil
}

// report counts the verdict and, where a pod does not get the sidecar that it should have, tells the owner.
func (r *reporter) report(namespace string, v verdict) {
	r.pods.WithLabelValues(string(v.outcome), string(v.reason)).Inc()
	if v.outcome != unprotected && v.outcome != denied {
		return
	}
	regarding := regarding(namespace, v)
	if regarding == nil {
		return
	}
	var related runtime.Object
	if v.policy != nil {
		related = policyReference(v.policy)
	}
	note := "pod " + podName(v.pod) + " was created without the sidecar: " + v.message
	if v.outcome == denied {
		note = "pod " + podName(v.pod) + " was denied: " + v.message
	}
	r.events.Eventf(regarding, related, corev1.EventTypeWarning, string(v.reason), "Inject", "%s", shorten(note))
}

// regarding is what the event is attached to. The pod does not exist yet, and may have no name: so its owner, without a walk to
// the owner's owner, else the policy. It is nil where neither is known; then the metric, the log and the answer have to do.
func regarding(namespace string, v verdict) runtime.Object {
	if v.pod != nil {
		owner := metav1.GetControllerOfNoCopy(v.pod)
		if owner == nil && len(v.pod.OwnerReferences) > 0 {
			owner = &v.pod.OwnerReferences[0]
		}
		if owner != nil {
			return &corev1.ObjectReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: namespace, Name: owner.Name, UID: owner.UID}
		}
	}
	if v.policy != nil {
		return policyReference(v.policy)
	}
	return nil
}

// policyReference spells the kind out, which an object from the cache does not know of itself.
func policyReference(p *v1alpha1.IdempotencyPolicy) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "IdempotencyPolicy", Namespace: p.Namespace, Name: p.Name, UID: p.UID,
	}
}

// podName is the pod's name, or what the API server will make it from.
func podName(pod *corev1.Pod) string {
	switch {
	case pod == nil:
		return "(unreadable)"
	case pod.Name != "":
		return pod.Name
	default:
		return pod.GenerateName + "*"
	}
}

func shorten(note string) string {
	if len(note) <= maxNote {
		return note
	}
	return strings.ToValidUTF8(note[:maxNote-len("...")], "") + "..."
}
