// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/policy"
	"github.com/idempotency-dev/operator/internal/retention"
)

const (
	// cleanupEvery is how often a keyspace is looked at, cleanupRetry how soon again when not all is well.
	cleanupEvery = 10 * time.Minute
	cleanupRetry = time.Minute
	// cleanupLimit bounds one pass. What it has not done the next one does.
	cleanupLimit = 10 * time.Minute
	// cleanupConcurrency bounds the passes at once: each uses up to three of a store's eight administrative connections.
	cleanupConcurrency = 2
	// midnightJitter spreads the passes after the database's midnight.
	midnightJitter = time.Minute
)

// Cleanup maintains the partitions of every policy's keyspace: after each change of the policy, after the database's midnight, and in between.
// It has its own queue, so that slow DDL delays no status. Make it with NewCleanup.
type Cleanup struct {
	client  client.Reader
	events  events.EventRecorder
	stores  *Stores
	clock   clock.Clock
	metrics *cleanupMetrics
	surveys *surveys
	wake    chan event.GenericEvent

	mu      sync.Mutex
	reports map[types.NamespacedName]outcome
}

// outcome is what the last pass over a keyspace came to.
type outcome struct {
	report retention.Report
	err    error
	// good is the last report of a pass that could look, and at is the operator's time then.
	good retention.Report
	at   time.Time
	// deliveries is the last report on the consumers' keyspace; nil: there is none.
	deliveries *retention.Report
}

// NewCleanup returns a Cleanup that runs once it is set up. Its metrics are a prometheus.Collector: see Metrics.
func NewCleanup(reader client.Reader, recorder events.EventRecorder, stores *Stores, clk clock.Clock) *Cleanup {
	c := &Cleanup{
		client: reader, events: recorder, stores: stores, clock: clk, surveys: newSurveys(clk),
		wake: make(chan event.GenericEvent), reports: map[types.NamespacedName]outcome{},
	}
	c.metrics = newCleanupMetrics(c.outcomes, clk)
	return c
}

// Wake yields a policy whenever there is news for its status.
func (c *Cleanup) Wake() <-chan event.GenericEvent { return c.wake }

// Report returns the last report on a policy's keyspace, and why the last pass could do nothing; false before the first pass.
func (c *Cleanup) Report(policy types.NamespacedName) (retention.Report, error, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, known := c.reports[policy]
	return found.report, found.err, known
}

// Deliveries returns the last report on the keyspace of a policy's consumers; false: nobody has seen one.
func (c *Cleanup) Deliveries(policy types.NamespacedName) (retention.Report, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found := c.reports[policy]; found.deliveries != nil {
		return *found.deliveries, true
	}
	return retention.Report{}, false
}

// SetupWithManager makes the leader's manager run the passes.
func (c *Cleanup) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("cleanup").
		WithOptions(controller.Options{MaxConcurrentReconciles: cleanupConcurrency}).
		For(&v1alpha1.IdempotencyPolicy{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, storeBecameUsable()))).
		Complete(c)
}

// storeBecameUsable lets a policy through when its keyspace, or that of its consumers, may have come to exist.
func storeBecameUsable() predicate.Predicate {
	declared := func(o client.Object) int32 {
		if p, ok := o.(*v1alpha1.IdempotencyPolicy); ok && p.Status.Consumers != nil {
			return p.Status.Consumers.Declared
		}
		return 0
	}
	usable := func(o client.Object) bool {
		p, ok := o.(*v1alpha1.IdempotencyPolicy)
		return ok && meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionStoreHealthy) &&
			meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionAccepted)
	}
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return usable(e.ObjectNew) && (!usable(e.ObjectOld) || declared(e.ObjectOld) != declared(e.ObjectNew))
		},
	}
}

// Reconcile runs one pass over one policy's keyspace. What goes wrong is in the report, and tried again at a pace of its own.
func (c *Cleanup) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	p := &v1alpha1.IdempotencyPolicy{}
	err := c.client.Get(ctx, req.NamespacedName, p)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("get policy %s: %w", req.NamespacedName, err)
	}
	if apierrors.IsNotFound(err) || p.DeletionTimestamp != nil || p.Spec.Store.Redis != nil { // Redis has no partitions
		c.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	accepted := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAccepted)
	if accepted == nil || accepted.Reason == v1alpha1.ReasonKeyspaceTaken {
		c.forget(req.NamespacedName) // nobody has looked at it yet, or the keyspace is another's
		return ctrl.Result{RequeueAfter: cleanupEvery}, nil
	}
	started := c.clock.Now()
	report, deliveries, err := c.pass(ctx, p)
	if ctx.Err() != nil {
		return ctrl.Result{}, nil //nolint:nilerr // the manager stops; what was done stays done
	}
	if errors.Is(err, retention.ErrNotRegistered) || errors.Is(err, keystore.ErrSchemaOutdated) {
		return ctrl.Result{RequeueAfter: cleanupRetry}, nil // the policy's own controller makes it, and wakes this one
	}
	c.metrics.observe(req.NamespacedName, report, err, c.clock.Since(started))
	c.tell(ctx, p, report, err)
	if c.keep(req.NamespacedName, report, deliveries, err) {
		select {
		case c.wake <- event.GenericEvent{Object: p}:
		case <-ctx.Done():
		}
	}
	return ctrl.Result{RequeueAfter: next(report, err)}, nil
}

// pass maintains the keyspace of p, and that of its consumers, where it exists. The report is on the first, but for what was done and what is wrong.
func (c *Cleanup) pass(ctx context.Context, p *v1alpha1.IdempotencyPolicy) (report retention.Report, deliveries *retention.Report, err error) {
	ctx, cancel := context.WithTimeout(ctx, cleanupLimit)
	defer cancel()
	p = p.DeepCopy()
	policy.Default(p)
	admin, err := c.stores.Admin(ctx, p)
	if err != nil {
		return retention.Report{}, nil, fmt.Errorf("open store: %w", err)
	}
	keyspace, settings := policy.Keyspace(p), retention.Settings{CreateAhead: int(p.Spec.Retention.CreateAhead)}
	if report, err = c.maintain(ctx, admin, keyspace, settings); err != nil {
		return report, nil, err
	}
	found, err := c.maintain(ctx, admin, postgres.ConsumersOf(keyspace), settings)
	if errors.Is(err, retention.ErrNotRegistered) {
		return report, nil, nil
	}
	if err != nil {
		return retention.Report{}, nil, fmt.Errorf("maintain deliveries to consumers: %w", err)
	}
	return joined(report, found), &found, nil
}

// maintain runs a pass over one keyspace, unless a survey shows that it needs nothing.
func (c *Cleanup) maintain(ctx context.Context, admin *postgres.Admin, keyspace string, settings retention.Settings) (retention.Report, error) {
	if state, read, found := c.surveys.find(ctx, admin, keyspace); found {
		if report, idle := retention.Idle(state, settings, read); idle {
			return report, nil
		}
	}
	return retention.Run(ctx, admin.Catalogue(keyspace), settings, operatorClock{c.clock})
}

// joined is report with what was done about deliveries, and what is wrong with them.
func joined(report, deliveries retention.Report) retention.Report {
	report.Created = append(report.Created, deliveries.Created...)
	report.Dropped = append(report.Dropped, deliveries.Dropped...)
	report.Problems = append(report.Problems, deliveries.Problems...)
	report.Overdue += deliveries.Overdue
	if deliveries.RunwayUntil.Before(report.RunwayUntil) {
		report.RunwayUntil = deliveries.RunwayUntil
	}
	return report
}

// tell writes what the pass did into the log, and each drop into an event.
func (c *Cleanup) tell(ctx context.Context, p *v1alpha1.IdempotencyPolicy, report retention.Report, err error) {
	log := slog.With("namespace", p.Namespace, "policy", p.Name)
	if err != nil && !errors.Is(err, retention.ErrLocked) {
		log.WarnContext(ctx, "partitions cannot be maintained", "error", err)
	}
	for _, name := range report.Created {
		log.InfoContext(ctx, "partition created", "table", name)
	}
	for _, d := range report.Dropped {
		from, to := d.From.Format(time.RFC3339), d.To.Format(time.RFC3339)
		log.InfoContext(ctx, "partition dropped", "table", d.Relation, "from", from, "to", to, "rows", d.Rows, "bytes", d.Bytes)
		c.events.Eventf(p, nil, corev1.EventTypeNormal, "PartitionDropped", "Cleanup",
			"Dropped partition %s, from %s to %s, with %d entries in %d bytes: none was honoured any more.", d.Relation, from, to, d.Rows, d.Bytes)
	}
	if report.Abandoned > 0 {
		log.WarnContext(ctx, "entries went without a known outcome: their window was over", "entries", report.Abandoned)
	}
	for _, problem := range report.Problems {
		log.WarnContext(ctx, "partitions need attention", "reason", problem.Reason, "table", problem.Relation, "problem", problem.Message)
	}
}

// keep remembers what a pass came to, and says whether a status could differ because of it.
func (c *Cleanup) keep(name types.NamespacedName, report retention.Report, deliveries *retention.Report, err error) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, known := c.reports[name]
	if known && errors.Is(err, retention.ErrLocked) {
		return false // the other manager knows better, for now
	}
	now := outcome{report: report, err: err, good: before.good, at: before.at, deliveries: before.deliveries}
	if err == nil {
		now.good, now.at, now.deliveries = report, c.clock.Now(), deliveries
	}
	c.reports[name] = now
	return !known || (before.err == nil) != (err == nil) || (err != nil && before.err.Error() != err.Error()) ||
		!reflect.DeepEqual(gist(&before.report), gist(&report)) || !reflect.DeepEqual(gist(before.deliveries), gist(now.deliveries))
}

// gist is what of a report a status shows; nil: there is none.
func gist(r *retention.Report) *retention.Report {
	if r == nil {
		return nil
	}
	return &retention.Report{Count: r.Count, Oldest: r.Oldest, Newest: r.Newest, RunwayUntil: r.RunwayUntil, Problems: r.Problems}
}

func (c *Cleanup) forget(name types.NamespacedName) {
	c.mu.Lock()
	delete(c.reports, name)
	c.mu.Unlock()
	c.metrics.forget(name)
}

func (c *Cleanup) outcomes() map[types.NamespacedName]outcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[types.NamespacedName]outcome, len(c.reports))
	for name, o := range c.reports {
		all[name] = o
	}
	return all
}

// next is when to look again: soon while not all is well, else after a while, and soon after the database's next midnight.
func next(report retention.Report, err error) time.Duration {
	if err != nil || !report.Ready() {
		return cleanupRetry/2 + rand.N(cleanupRetry)
	}
	wait := cleanupEvery/2 + rand.N(cleanupEvery)
	midnight := report.Now.UTC().Truncate(retention.Day).Add(retention.Day).Sub(report.Now)
	return min(wait, midnight+time.Second+rand.N(midnightJitter))
}

// operatorClock is the operator's clock as retention wants it.
type operatorClock struct{ clock.Clock }

// Wait returns after d, or when ctx ends.
func (c operatorClock) Wait(ctx context.Context, d time.Duration) error {
	timer := c.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
