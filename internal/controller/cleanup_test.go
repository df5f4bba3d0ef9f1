// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/retention"
)

// cleaning runs a Cleanup beside w's own controller, and returns it with what it would wake that one for.
func (w *world) cleaning(clk clock.Clock, recorder events.EventRecorder) (*Cleanup, *wakes) {
	w.t.Helper()
	skip := true
	mgr, err := ctrl.NewManager(server.config, ctrl.Options{
		Scheme:     server.scheme,
		Cache:      cache.Options{DefaultNamespaces: map[string]cache.Config{w.namespace: {}}},
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: &skip},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if recorder == nil {
		recorder = mgr.GetEventRecorder("idempotency-operator")
	}
	cleanup := NewCleanup(mgr.GetClient(), recorder, w.stores, clk)
	if err := cleanup.SetupWithManager(mgr); err != nil {
		w.t.Fatal(err)
	}
	seen := &wakes{}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			w.t.Errorf("manager: %v", err)
		}
	})
	running.Go(func() { seen.watch(ctx, cleanup) })
	w.t.Cleanup(func() { cancel(); running.Wait() })
	return cleanup, seen
}

// wakes counts what a Cleanup wakes the policies' controller for.
type wakes struct {
	mu    sync.Mutex
	names []string
}

func (s *wakes) watch(ctx context.Context, c *Cleanup) {
	for {
		select {
		case e := <-c.Wake():
			s.mu.Lock()
			s.names = append(s.names, e.Object.GetName())
			s.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

func (s *wakes) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.names)
}

// reported waits for a report on a policy that check finds right.
func (w *world) reported(c *Cleanup, name string, check func(retention.Report, error) bool) retention.Report {
	w.t.Helper()
	var last retention.Report
	eventually(w.t, func() error {
		report, err, known := c.Report(types.NamespacedName{Namespace: w.namespace, Name: name})
		if !known || !check(report, err) {
			return fmt.Errorf("%w: known %t, %d partitions, problems %v, %w", errWait, known, report.Count, report.Problems, err)
		}
		last = report
		return nil
	})
	return last
}

func ahead(days int) func(retention.Report, error) bool {
	return func(r retention.Report, err error) bool { return err == nil && r.Ready() && r.Count == days+1 }
}

// A policy gets its partitions when its keyspace exists, more when it asks for more, and news of each wakes its own controller.
func TestCleanup(t *testing.T) {
	w := newWorld(t, nil)
	cleanup, seen := w.cleaning(clock.RealClock{}, nil)
	w.policy("payments", func(p *v1alpha1.IdempotencyPolicy) { p.Spec.Retention.CreateAhead = 3 })
	w.reported(cleanup, "payments", ahead(3))
	eventually(t, func() error {
		p, err := w.get("payments")
		if err != nil {
			return err
		}
		p.Spec.Retention.CreateAhead = 5
		return server.client.Update(t.Context(), p)
	})
	w.reported(cleanup, "payments", ahead(5))
	eventually(t, func() error {
		if n := len(seen.all()); n != 2 {
			return fmt.Errorf("%d wakes, want one for each report", n)
		}
		return nil
	})
	values := gather(t, cleanup)
	if got := values["idempotency_cleanup_partitions"]; got != 6 {
		t.Errorf("metric partitions is %v, want 6", got)
	}
	if got := values["idempotency_cleanup_created_total"]; got != 6 {
		t.Errorf("metric created_total is %v, want 6", got)
	}
	if got := values["idempotency_cleanup_runway_seconds"]; got <= 5*24*3600 || got > 6*24*3600 {
		t.Errorf("metric runway_seconds is %v, want between 5 and 6 days", got)
	}
	p, err := w.get("payments")
	if err != nil {
		t.Fatal(err)
	}
	if err := server.client.Delete(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if _, _, known := cleanup.Report(types.NamespacedName{Namespace: w.namespace, Name: "payments"}); known || len(gather(t, cleanup)) > 0 {
			return errors.New("the deleted policy is still reported")
		}
		return nil
	})
}

// gather reads the metrics of c, summed over their labels.
func gather(t *testing.T, c *Cleanup) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(c.Metrics()); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			values[f.GetName()] += value(m)
		}
	}
	return values
}

func value(m *dto.Metric) float64 {
	return m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
}

// What is dropped becomes an event that names the table, its bounds, its rows and its bytes.
func TestCleanupTellsOfDrops(t *testing.T) {
	w := newWorld(t, nil)
	recorder := events.NewFakeRecorder(10)
	w.policy("payments", nil)
	w.await("payments", v1alpha1.ConditionStoreHealthy, "True", v1alpha1.ReasonHealthy)
	parent := postgres.Relation(w.namespace + ".payments")
	old := retention.Name(parent, time.Now().AddDate(0, 0, -10))
	w.exec(fmt.Sprintf(`CREATE TABLE idempotency.%[2]s (LIKE idempotency.%[1]s INCLUDING ALL, PRIMARY KEY (client, key));
		ALTER TABLE idempotency.%[2]s OWNER TO %[5]s;
		ALTER TABLE idempotency.%[1]s ATTACH PARTITION idempotency.%[2]s FOR VALUES FROM ('%[3]s') TO ('%[4]s')`,
		parent, old, time.Now().AddDate(0, 0, -10).UTC().Format("2006-01-02 00:00+00"), time.Now().AddDate(0, 0, -9).UTC().Format("2006-01-02 00:00+00"), w.adminRole))
	cleanup, _ := w.cleaning(clock.RealClock{}, recorder)
	w.reported(cleanup, "payments", ahead(7))
	select {
	case got := <-recorder.Events:
		if !strings.Contains(got, "PartitionDropped Dropped partition "+old+", from ") || !strings.Contains(got, "with 0 entries in ") {
			t.Errorf("event: %s", got)
		}
	case <-t.Context().Done():
		t.Error("no event")
	}
}

// A store that cannot be reached is reported without any part of its connection string, and the runway in the metrics gets shorter.
func TestCleanupOfUnreachableStore(t *testing.T) {
	clk := testingclock.NewFakeClock(time.Now())
	w := newWorld(t, nil)
	w.policy("payments", nil)
	cleanup, _ := w.cleaning(clk, nil)
	w.reported(cleanup, "payments", ahead(7))
	before := gather(t, cleanup)["idempotency_cleanup_runway_seconds"]
	w.exec("ALTER ROLE " + w.adminRole + " NOLOGIN")
	w.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '" + w.adminRole + "'")
	clk.Step(time.Hour)
	if after := gather(t, cleanup)["idempotency_cleanup_runway_seconds"]; after > before-3600 {
		t.Errorf("an hour later the runway is %vs, before it was %vs", after, before)
	}
	eventually(t, func() error {
		p, err := w.get("payments")
		if err != nil {
			return err
		}
		p.Spec.Retention.CreateAhead = 9
		return server.client.Update(t.Context(), p)
	})
	_ = w.reported(cleanup, "payments", func(_ retention.Report, err error) bool { return err != nil })
	_, err, _ := cleanup.Report(types.NamespacedName{Namespace: w.namespace, Name: "payments"})
	for _, secret := range []string{w.adminRole, "secret-of", w.databaseName(), "127.0.0.1"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error repeats a part of the connection string: %v", err)
		}
	}
}

func TestNext(t *testing.T) {
	noon := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	late := time.Date(2026, 11, 30, 23, 59, 0, 0, time.UTC)
	trouble := []retention.Problem{{Reason: retention.ReasonLockTimeout}}
	for _, test := range []struct {
		name     string
		report   retention.Report
		err      error
		from, to time.Duration
		reason   string
	}{
		{"noon", retention.Report{Now: noon}, nil, cleanupEvery / 2, 3 * cleanupEvery / 2, "all is well"},
		{"before midnight", retention.Report{Now: late}, nil, time.Minute + time.Second, 2*time.Minute + time.Second, "just after midnight, spread"},
		{"before midnight elsewhere", retention.Report{Now: late.In(time.FixedZone("", -3*3600))}, nil, time.Minute + time.Second, 2*time.Minute + time.Second, "midnight is UTC's"},
		{"problem", retention.Report{Now: noon, Problems: trouble}, nil, cleanupRetry / 2, 3 * cleanupRetry / 2, "sooner"},
		{"failure", retention.Report{}, retention.ErrLocked, cleanupRetry / 2, 3 * cleanupRetry / 2, "sooner"},
	} {
		for range 100 {
			if got := next(test.report, test.err); got < test.from || got > test.to {
				t.Fatalf("%s (%s): in %s, want between %s and %s", test.name, test.reason, got, test.from, test.to)
			}
		}
	}
}

func TestKeep(t *testing.T) {
	c := NewCleanup(nil, nil, nil, clock.RealClock{})
	name := types.NamespacedName{Namespace: "n", Name: "p"}
	good := retention.Report{Now: time.Unix(0, 0), Count: 8}
	later := good
	later.Now, later.Partitions = time.Unix(600, 0), []retention.Partition{{Bytes: 1}}
	more := later
	more.Count = 9
	var got []bool
	for _, pass := range []struct {
		report retention.Report
		err    error
	}{{good, nil}, {later, nil}, {more, nil}, {good, retention.ErrLocked}, {good, retention.ErrReadOnly}, {good, retention.ErrReadOnly}, {more, nil}} {
		got = append(got, c.keep(name, pass.report, nil, pass.err))
	}
	// The first is news; other bytes at another time are not; more partitions are; another manager is not; a failure is, once; its end is.
	want := []bool{true, false, true, false, true, false, true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("news: -want +got\n%s", diff)
	}
	if report, err, known := c.Report(name); !known || err != nil || !cmp.Equal(report, more, cmpopts.EquateEmpty()) {
		t.Errorf("Report = %v, %v, %t; want the last", report, err, known)
	}
}
