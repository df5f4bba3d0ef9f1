// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/retention"
)

// reported is a report that somebody made, or not.
type reported struct {
	report retention.Report
	err    error
	known  bool
}

func (r reported) Deliveries(types.NamespacedName) (retention.Report, bool) {
	return retention.Report{}, false
}

func (r reported) Report(types.NamespacedName) (retention.Report, error, bool) {
	return r.report, r.err, r.known
}

func TestPartitionsReady(t *testing.T) {
	day := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	with := func(problems ...retention.Problem) reported {
		return reported{known: true, report: retention.Report{
			Now: day, Count: 8, Oldest: day, Newest: day.AddDate(0, 0, 7), RunwayUntil: day.AddDate(0, 0, 8), Problems: problems,
		}}
	}
	failed := func(err error) reported { return reported{known: true, err: fmt.Errorf("run: %w", err)} }
	for _, tt := range []struct {
		because string
		reports reported
		unready bool // the policy is not valid
		before  string
		edits   int64 // since then
		status  metav1.ConditionStatus
		reason  string
		says    string
	}{
		{because: "all is well", reports: with(), status: metav1.ConditionTrue, reason: v1alpha1.ReasonMaintained},
		{because: "nobody has looked", status: metav1.ConditionUnknown, reason: v1alpha1.ReasonProgressing},
		{because: "nobody has looked since another manager did", before: v1alpha1.ReasonRunwayShort, status: metav1.ConditionFalse, reason: v1alpha1.ReasonRunwayShort},
		{because: "nobody has looked since an edit", before: v1alpha1.ReasonRunwayShort, edits: 1, status: metav1.ConditionUnknown, reason: v1alpha1.ReasonProgressing},
		{because: "nobody will look", unready: true, status: metav1.ConditionUnknown, reason: v1alpha1.ReasonNotAccepted},
		{because: "an invalid policy is maintained all the same", unready: true, reports: with(), status: metav1.ConditionTrue, reason: v1alpha1.ReasonMaintained},
		{because: "another manager is at it", reports: failed(retention.ErrLocked), status: metav1.ConditionUnknown, reason: v1alpha1.ReasonProgressing},
		{
			because: "the worst problem is shown, the others counted",
			reports: with(retention.Problem{Reason: retention.ReasonRunwayShort, Message: "two days short"}, retention.Problem{Reason: retention.ReasonPendingDetach}),
			status:  metav1.ConditionFalse, reason: v1alpha1.ReasonRunwayShort, says: "two days short (and 1 more)",
		},
		{
			because: "the table is named", reports: with(retention.Problem{Reason: retention.ReasonLockTimeout, Relation: "k_p20261130", Message: "cannot create"}),
			status: metav1.ConditionFalse, reason: v1alpha1.ReasonLockTimeout, says: "k_p20261130: cannot create",
		},
		{because: "a detach waits", reports: with(retention.Problem{Reason: retention.ReasonPendingDetach}), status: metav1.ConditionFalse, reason: v1alpha1.ReasonPendingDetach},
		{because: "bounds are odd", reports: with(retention.Problem{Reason: retention.ReasonBoundsMismatch}), status: metav1.ConditionFalse, reason: v1alpha1.ReasonBoundsMismatch},
		{because: "there is a default partition", reports: with(retention.Problem{Reason: retention.ReasonDefaultPartition}), status: metav1.ConditionFalse, reason: v1alpha1.ReasonDefaultPartitionHasRows},
		{
			because: "what a driver says is not shown", reports: with(retention.Problem{Reason: retention.ReasonFailed, Relation: "k_p20261130", Message: "host=hunter2"}),
			status: metav1.ConditionFalse, reason: v1alpha1.ReasonMaintenanceFailed, says: "k_p20261130: a step failed",
		},
		{because: "the default partition has rows", reports: failed(retention.ErrDefaultPartition), status: metav1.ConditionFalse, reason: v1alpha1.ReasonDefaultPartitionHasRows},
		{because: "the server is read-only", reports: failed(retention.ErrReadOnly), status: metav1.ConditionFalse, reason: v1alpha1.ReasonMaintenanceFailed, says: "read-only"},
		{because: "clocks differ", reports: failed(retention.ErrClockSkew), status: metav1.ConditionFalse, reason: v1alpha1.ReasonMaintenanceFailed, says: "clocks"},
		{because: "the store is away", reports: failed(keystore.ErrUnreachable), status: metav1.ConditionFalse, reason: v1alpha1.ReasonMaintenanceFailed, says: "does not answer"},
		{because: "nobody knows why", reports: failed(errors.New("host=hunter2")), status: metav1.ConditionFalse, reason: v1alpha1.ReasonMaintenanceFailed, says: "log"},
	} {
		t.Run(tt.because, func(t *testing.T) {
			p := &pass{policy: &v1alpha1.IdempotencyPolicy{}, dsn: "x"}
			if tt.before != "" {
				p.set(v1alpha1.ConditionPartitionsReady, metav1.ConditionFalse, tt.before, "")
				p.policy.Generation += tt.edits
			}
			if tt.unready {
				p.dsn = ""
			}
			(&Policies{Reports: tt.reports}).partitions(p)
			c := p.condition(v1alpha1.ConditionPartitionsReady)
			if c == nil || c.Status != tt.status || c.Reason != tt.reason || !strings.Contains(c.Message, tt.says) {
				t.Errorf("condition is %+v", c)
			}
			if strings.Contains(fmt.Sprint(p.status), "hunter2") {
				t.Errorf("the status quotes the driver: %+v", c)
			}
		})
	}
}

func TestPartitionsStatus(t *testing.T) {
	day := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	until := metav1.NewTime(day.AddDate(0, 0, 8))
	for _, tt := range []struct {
		because string
		report  retention.Report
		want    v1alpha1.PartitionsStatus
	}{
		{
			because: "days are written as days", report: retention.Report{Count: 8, Oldest: day, Newest: day.AddDate(0, 0, 7), RunwayUntil: until.Time},
			want: v1alpha1.PartitionsStatus{Count: 8, Oldest: "2026-11-30", Newest: "2026-12-07", RunwayUntil: &until},
		},
		{because: "without partitions there are no days", report: retention.Report{}, want: v1alpha1.PartitionsStatus{}},
	} {
		if diff := cmp.Diff(&tt.want, partitionsStatus(tt.report)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.because, diff)
		}
	}
}
