// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of one process. Labels are route names and constants, never anything that a client sends.
type metrics struct {
	now func() time.Time

	requests      *prometheus.CounterVec
	reserve       prometheus.Observer
	upstream      prometheus.Observer
	complete      prometheus.Observer
	inFlight      prometheus.Gauge
	waiting       prometheus.Gauge
	storeErrors   *prometheus.CounterVec
	lost          prometheus.Counter
	unreadable    prometheus.Counter
	journal       prometheus.Gauge
	journalAside  prometheus.Gauge
	journalBytes  prometheus.Gauge
	journalEnds   *prometheus.CounterVec
	generation    prometheus.Gauge
	configLoaded  prometheus.Gauge
	dsnLoaded     prometheus.Gauge
	keysLoaded    prometheus.Gauge
	configChanged prometheus.Gauge
}

func newMetrics(registry prometheus.Registerer, now func() time.Time) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "idempotency_proxy_" + name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "idempotency_proxy_" + name, Help: help})
	}
	latency := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "idempotency_proxy_step_seconds", Help: "How long the steps of an enforced request took.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
	}, []string{"step"})
	m := &metrics{
		now:           now,
		requests:      counter("requests_total", "Requests on enforced routes by what became of them.", "route", "mode", "outcome"),
		reserve:       latency.WithLabelValues("reserve"),
		upstream:      latency.WithLabelValues("upstream"),
		complete:      latency.WithLabelValues("complete"),
		inFlight:      gauge("in_flight", "Enforced requests being handled."),
		waiting:       gauge("waiting", "Requests that wait for another with the same key."),
		storeErrors:   counter("store_errors_total", "Calls to the key store that failed.", "operation"),
		lost:          prometheus.NewCounter(prometheus.CounterOpts{Name: "idempotency_proxy_reservations_lost_total", Help: "Results that came after the reservation had ended or was taken over."}),
		unreadable:    prometheus.NewCounter(prometheus.CounterOpts{Name: "idempotency_proxy_answers_unreadable_total", Help: "Times that a recorded answer could not be decrypted."}),
		journal:       gauge("journal_records", "Results that the key store has not taken yet."),
		journalAside:  gauge("journal_set_aside_records", "Such results that wait for another key store, or that it refuses."),
		journalBytes:  gauge("journal_bytes", "Size of the journal of such results."),
		journalEnds:   counter("journal_records_total", "Results that left the journal, by how.", "end"),
		generation:    gauge("config_generation", "Generation of the policy in use."),
		configLoaded:  gauge("config_last_reload_successful", "1 when the configuration file, as it is now, is in use."),
		dsnLoaded:     gauge("dsn_last_reload_successful", "1 when the connection string, as it is now, is in use."),
		keysLoaded:    gauge("encryption_keys_last_reload_successful", "1 when the encryption keys, as they are now, are in use; 0 also without a key file."),
		configChanged: gauge("config_last_reload_success_timestamp_seconds", "When the configuration in use was loaded."),
	}
	registry.MustRegister(m.requests, latency, m.inFlight, m.waiting, m.storeErrors, m.lost, m.unreadable, m.journal, m.journalAside, m.journalBytes, m.journalEnds,
		m.generation, m.configLoaded, m.dsnLoaded, m.keysLoaded, m.configChanged)
	return m
}

// observe is the end of a step that has begun then.
func (m *metrics) observe(step prometheus.Observer, begin time.Time) {
	step.Observe(m.now().Sub(begin).Seconds())
}
