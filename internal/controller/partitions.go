// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/retention"
)

// Reports is what the maintenance of partitions last saw.
type Reports interface {
	// Report returns the last report on a policy's keyspace, and why the last pass could do nothing; false before the first pass.
	Report(policy types.NamespacedName) (retention.Report, error, bool)
	// Deliveries returns the last report on the keyspace of a policy's consumers; false: nobody has seen one. Its problems are among those of Report, too.
	Deliveries(policy types.NamespacedName) (retention.Report, bool)
}

// partitions owns the condition PartitionsReady. It reads what the cleanup controller last reported; that one keeps its own time.
func (r *Policies) partitions(p *pass) {
	if p.policy.Spec.Store.Redis != nil {
		p.status.Partitions, p.status.Consumers = nil, nil
		p.set(v1alpha1.ConditionPartitionsReady, metav1.ConditionTrue, v1alpha1.ReasonNativeExpiry, "Redis removes each entry when its window is over: there are no partitions.")
		return
	}
	report, err, known := r.Reports.Report(client.ObjectKeyFromObject(p.policy))
	before := p.condition(v1alpha1.ConditionPartitionsReady)
	switch {
	case !known && p.usable() && before != nil && before.ObservedGeneration == p.policy.Generation:
		// A manager that has just begun to lead says what the one before it saw, until it has looked itself.
	case !p.usable() && !known:
		p.set(v1alpha1.ConditionPartitionsReady, metav1.ConditionUnknown, v1alpha1.ReasonNotAccepted, "Partitions are made once the policy is valid and its Secrets exist.")
	case !known:
		p.set(v1alpha1.ConditionPartitionsReady, metav1.ConditionUnknown, v1alpha1.ReasonProgressing, "Partitions have not been looked at yet.")
	case errors.Is(err, retention.ErrLocked):
		// Another manager is at it; its report, or the next pass here, will say how it went.
		if before == nil {
			p.set(v1alpha1.ConditionPartitionsReady, metav1.ConditionUnknown, v1alpha1.ReasonProgressing, "Another manager maintains this keyspace right now.")
		}
	case errors.Is(err, retention.ErrDefaultPartition):
		p.set(v1alpha1.ConditionPartitionsReady, metav1.ConditionFalse, v1alpha1.ReasonDefaultPartitionHasRows, "The table has a default partition with rows in it: move them out and drop the default partition.")
	case err != nil:
		p.set(v1alpha1.ConditionPartitionsReady, metav1.ConditionFalse, v1alpha1.ReasonMaintenanceFailed, maintenanceFailed(err))
	default:
		deliveries, seen := r.Reports.Deliveries(client.ObjectKeyFromObject(p.policy))
		p.maintained(report)
		p.delivered(deliveries, seen)
	}
}

// declared says that the store knows the policy's consumers.
func (p *pass) declared() {
	declared := int32(len(p.policy.Spec.Consumers))
	if p.status.Consumers == nil && declared > 0 {
		p.status.Consumers = &v1alpha1.ConsumersStatus{}
	}
	if p.status.Consumers != nil {
		p.status.Consumers.Declared = declared
	}
}

// delivered says what is kept of deliveries. What consumers have taken is kept after they are gone from the policy.
func (p *pass) delivered(report retention.Report, seen bool) {
	switch {
	case seen && p.status.Consumers != nil:
		p.status.Consumers.Partitions = partitionsStatus(report)
	case !seen && len(p.policy.Spec.Consumers) > 0:
		p.set(v1alpha1.ConditionPartitionsReady, metav1.ConditionUnknown, v1alpha1.ReasonProgressing, "The partitions of consumers' deliveries have not been looked at yet.")
	}
}

// maintenanceFailed is a stable message without anything that a driver said.
func maintenanceFailed(err error) string {
	for _, cause := range []error{retention.ErrReadOnly, retention.ErrClockSkew} {
		if errors.Is(err, cause) {
			return "Partitions could not be looked at: " + cause.Error() + "."
		}
	}
	return "Partitions could not be looked at. " + troubleOf(err).message
}

func (p *pass) maintained(report retention.Report) {
	p.status.Partitions = partitionsStatus(report)
	if report.Ready() {
		p.set(v1alpha1.ConditionPartitionsReady, metav1.ConditionTrue, v1alpha1.ReasonMaintained, "Partitions exist as far ahead as asked and no drop is overdue.")
		return
	}
	worst := report.Problems[0]
	message := worst.Message
	if worst.Reason == retention.ReasonFailed {
		message = "a step failed: the manager's log says why" // the message quotes the driver
	}
	if worst.Relation != "" {
		message = worst.Relation + ": " + message
	}
	if more := len(report.Problems) - 1; more > 0 {
		message = fmt.Sprintf("%s (and %d more)", message, more)
	}
	// Package retention uses the condition's own words.
	p.set(v1alpha1.ConditionPartitionsReady, metav1.ConditionFalse, string(worst.Reason), message)
}

func partitionsStatus(report retention.Report) *v1alpha1.PartitionsStatus {
	status := &v1alpha1.PartitionsStatus{Count: int32(report.Count)}
	if report.Count > 0 {
		status.Oldest, status.Newest = report.Oldest.UTC().Format(time.DateOnly), report.Newest.UTC().Format(time.DateOnly)
	}
	if !report.RunwayUntil.IsZero() {
		until := metav1.NewTime(report.RunwayUntil.UTC())
		status.RunwayUntil = &until
	}
	return status
}
