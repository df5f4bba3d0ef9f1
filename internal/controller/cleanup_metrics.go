// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/retention"
)

// Metrics of the maintenance of partitions, for a registry.
func (c *Cleanup) Metrics() prometheus.Collector { return c.metrics }

// cleanupMetrics counts what passes did, and shows what the last good one saw. The runway goes on getting shorter while passes fail.
type cleanupMetrics struct {
	outcomes func() map[types.NamespacedName]outcome
	clock    clock.Clock

	created, dropped, abandoned, failures *prometheus.CounterVec
	duration                              *prometheus.HistogramVec

	runway, partitions, rows, bytes, overdue, unsettled *prometheus.Desc
}

func newCleanupMetrics(outcomes func() map[types.NamespacedName]outcome, clk clock.Clock) *cleanupMetrics {
	name := func(s string) string { return prometheus.BuildFQName("idempotency", "cleanup", s) }
	labels := []string{"namespace", "policy"}
	counter := func(n, help string, more ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name(n), Help: help}, append(labels[:2:2], more...))
	}
	gauge := func(n, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc(name(n), help, append(labels[:2:2], more...), nil)
	}
	return &cleanupMetrics{
		outcomes: outcomes, clock: clk,
		created:   counter("created_total", "Partitions made."),
		dropped:   counter("dropped_total", "Partitions dropped."),
		abandoned: counter("abandoned_entries_total", "Entries without a known outcome that went with their partition, after their window."),
		failures:  counter("failures_total", "Passes that could do nothing, and steps that failed, by reason.", "reason"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name("duration_seconds"), Help: "Duration of a pass over one keyspace.", Buckets: []float64{.01, .05, .1, .5, 1, 5, 10, 60, 300},
		}, labels),
		runway:     gauge("runway_seconds", "How far ahead partitions exist without a gap."),
		partitions: gauge("partitions", "Attached partitions."),
		rows:       gauge("partition_entries", "Entries in a partition: exact once its day is over, else the server's estimate.", "day"),
		bytes:      gauge("partition_bytes", "Bytes of a partition on disk, without its indexes.", "day"),
		overdue:    gauge("overdue_partitions", "Partitions that should have been dropped more than an hour ago."),
		unsettled:  gauge("unsettled_entries", "Entries without a recorded answer in partitions whose day is over."),
	}
}

// observe counts one pass.
func (m *cleanupMetrics) observe(policy types.NamespacedName, report retention.Report, err error, took time.Duration) {
	if errors.Is(err, retention.ErrLocked) {
		return
	}
	labels := []string{policy.Namespace, policy.Name}
	m.duration.WithLabelValues(labels...).Observe(took.Seconds())
	m.created.WithLabelValues(labels...).Add(float64(len(report.Created)))
	m.dropped.WithLabelValues(labels...).Add(float64(len(report.Dropped)))
	m.abandoned.WithLabelValues(labels...).Add(float64(report.Abandoned))
	if err != nil {
		m.failures.WithLabelValues(policy.Namespace, policy.Name, failureOf(err)).Inc()
	}
	for _, problem := range report.Problems {
		m.failures.WithLabelValues(policy.Namespace, policy.Name, string(problem.Reason)).Inc()
	}
}

// failureOf is a word for why a pass could do nothing.
func failureOf(err error) string {
	switch {
	case errors.Is(err, retention.ErrReadOnly):
		return "ReadOnly"
	case errors.Is(err, retention.ErrClockSkew):
		return "ClockSkew"
	case errors.Is(err, retention.ErrDefaultPartition):
		return string(retention.ReasonDefaultPartition)
	case errors.Is(err, retention.ErrLockTimeout):
		return string(retention.ReasonLockTimeout)
	case errors.Is(err, keystore.ErrDSNInvalid):
		return "DSNInvalid"
	}
	return troubleOf(err).reason
}

func (m *cleanupMetrics) counters() []prometheus.Collector {
	return []prometheus.Collector{m.created, m.dropped, m.abandoned, m.failures, m.duration}
}

// forget takes a policy's counts away.
func (m *cleanupMetrics) forget(policy types.NamespacedName) {
	labels := prometheus.Labels{"namespace": policy.Namespace, "policy": policy.Name}
	for _, vec := range []*prometheus.CounterVec{m.created, m.dropped, m.abandoned, m.failures} {
		vec.DeletePartialMatch(labels)
	}
	m.duration.DeletePartialMatch(labels)
}

// Describe implements prometheus.Collector.
func (m *cleanupMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, c := range m.counters() {
		c.Describe(out)
	}
	for _, d := range []*prometheus.Desc{m.runway, m.partitions, m.rows, m.bytes, m.overdue, m.unsettled} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *cleanupMetrics) Collect(out chan<- prometheus.Metric) {
	for _, c := range m.counters() {
		c.Collect(out)
	}
	for policy, o := range m.outcomes() {
		if o.at.IsZero() {
			continue
		}
		gauge := func(desc *prometheus.Desc, value float64, more ...string) {
			out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, append([]string{policy.Namespace, policy.Name}, more...)...)
		}
		gauge(m.runway, max(o.good.Runway()-m.clock.Since(o.at), 0).Seconds())
		gauge(m.partitions, float64(o.good.Count))
		gauge(m.overdue, float64(o.good.Overdue))
		gauge(m.unsettled, float64(o.good.Unsettled))
		for _, p := range o.good.Partitions {
			if p.Link != retention.Attached || p.To.Sub(p.From) != retention.Day {
				continue // another's, and its day may be that of one of ours
			}
			day := p.From.UTC().Format(time.DateOnly)
			gauge(m.rows, float64(max(p.Rows, 0)), day)
			gauge(m.bytes, float64(p.Bytes), day)
		}
	}
}
