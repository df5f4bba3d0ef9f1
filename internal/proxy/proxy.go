// SPDX-License-Identifier: Apache-2.0

// Package proxy is the sidecar: an HTTP handler in front of an app that gives chosen requests exactly one effect per key. What it promises on
// the wire is in docs/spec/proxy.md. It knows a keystore.Store and nothing of what is behind it, and nothing of Kubernetes.
//
// A request goes through the files of this package in this order: route, client, key, spool, fingerprint, reserve, execute, relay, record;
// a retry ends in replay, problem or unknown. What is not enforced goes through passthrough.
package proxy

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// The names of header fields that only the sidecar may set: the first two on requests to the app, the others on answers to clients.
const (
	headerReservation = "Idempotency-Reservation"
	headerSeed        = "Idempotency-Seed"
	headerReplayed    = "Idempotent-Replayed"
	headerStatus      = "Idempotency-Status"
)

// Options are what a Proxy is made of.
type Options struct {
	// Upstream is the app: http, https or h2c, with host and port, without a path.
	Upstream *url.URL
	// UpstreamTLS is for an https upstream; nil: the system's authorities vouch for it.
	UpstreamTLS *tls.Config
	// Spool is a directory of this process alone, for bodies and the journal. It outlives the process, not the app.
	Spool string
	// Limits bound everything.
	Limits Limits
	// Registry takes the metrics.
	Registry prometheus.Registerer
	// Log takes what an operator needs to know.
	Log *slog.Logger
	// Now is the clock, for latencies, deadlines of clients and the end of what is certain about a reservation.
	Now func() time.Time
	// Tracer takes the spans of enforced requests; nil: there are none, and the caller's trace passes through.
	Tracer trace.Tracer
}

// Proxy is the handler. Load gives it a configuration before its first request.
type Proxy struct {
	limits   Limits
	log      *slog.Logger
	metrics  *metrics
	now      func() time.Time
	tracer   trace.Tracer
	holder   keystore.Holder
	upstream *upstream
	forward  *httputil.ReverseProxy
	spool    *spool
	settler  *settler
	memory   *budget
	inFlight *budget
	waiters  *budget
	chunks   *chunks

	active  atomic.Int64 // requests being handled
	current atomic.Pointer[generation]
	ending  context.Context // ends when requests in flight have had their time
	endAll  context.CancelFunc
	stop    context.CancelFunc // of the settler
	done    chan struct{}
}

// New makes a Proxy and starts to deliver what an earlier process left in the journal as soon as a configuration is loaded.
func New(o Options) (*Proxy, error) {
	if err := o.Limits.Validate(); err != nil {
		return nil, err
	}
	journal, err := openJournal(o.Spool)
	if err != nil {
		return nil, err
	}
	m := newMetrics(o.Registry, o.Now)
	memory, buffers := &budget{limit: o.Limits.MemoryBytes}, &chunks{}
	p := &Proxy{
		limits: o.Limits, log: o.Log, metrics: m, now: o.Now, tracer: o.Tracer, holder: keystore.NewHolder(),
		upstream: newUpstream(o.Upstream, o.UpstreamTLS, o.Limits.InFlight),
		spool: &spool{
			dir: o.Spool, memoryBytes: o.Limits.BodyMemoryBytes, bodyBytes: o.Limits.BodyBytes,
			memory: memory, files: &budget{limit: o.Limits.SpillBytes}, chunks: buffers,
		},
		settler:  newSettler(journal, o.Limits.JournalBytes, m, o.Log),
		memory:   memory,
		inFlight: &budget{limit: int64(o.Limits.InFlight)},
		waiters:  &budget{limit: int64(o.Limits.Waiters)},
		chunks:   buffers,
		done:     make(chan struct{}),
	}
	o.Registry.MustRegister(prometheus.NewGaugeFunc(
		prometheus.GaugeOpts{Name: "idempotency_proxy_store_up", Help: "1 while the key store takes reservations."}, p.storeUp))
	p.forward = newForward(p)
	p.ending, p.endAll = context.WithCancel(context.Background())
	return p, nil
}

// Load makes config and store, of that identity, the ones that requests meet from now on. A nil store keeps the current one. Requests in flight
// keep theirs, and a store is closed behind the last one. The first Load needs a store.
func (p *Proxy) Load(config proxyconfig.Config, store keystore.Store, storeID string) {
	old := p.current.Load()
	var l *link
	if store != nil {
		l = newLink(store, storeID, p.holder, p.limits, p.metrics, p.log)
		defer p.settler.journal.reconsider()
	} else {
		l = old.link
		l.users.Add(1)
	}
	var known *identity
	if old != nil {
		known = old.identity
	}
	p.current.Store(newGeneration(config, l, newIdentity(config.Client, p.now, known)))
	p.metrics.generation.Set(float64(config.Policy.Generation))
	if old != nil {
		old.leave()
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	go func() {
		defer close(p.done)
		p.settler.run(ctx, p.enter)
	}()
}

// enter is the generation in use, for one request.
func (p *Proxy) enter() *generation {
	for {
		if g := p.current.Load(); g.enter() {
			return g
		}
	}
}

func (p *Proxy) storeUp() float64 {
	if g := p.current.Load(); g == nil || g.link.down.Load() {
		return 0
	}
	return 1
}

// ServeHTTP decides whether a request is enforced.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.active.Add(1)
	defer p.active.Add(-1)
	g := p.enter()
	defer g.leave()
	g.identity.strip(r)
	if r.URL.Path == wellKnownPath && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		g.serveWellKnown(w, r)
		return
	}
	rt, err := g.router.match(r)
	if err != nil {
		p.count("", g, writeProblem(w, err, "").outcome)
		return
	}
	if rt == nil {
		p.forward.ServeHTTP(w, r)
		return
	}
	x := &exchange{proxy: p, generation: g, route: rt, w: w, r: r, control: http.NewResponseController(w)}
	defer x.trace()() //nolint:contextcheck // an exchange carries its request's context
	if g.config.Mode == "Audit" {
		x.audit() //nolint:contextcheck // an exchange carries its request's context
		return
	}
	x.enforce() //nolint:contextcheck // an exchange carries its request's context
}

func (p *Proxy) count(routeName string, g *generation, outcome string) {
	p.metrics.requests.WithLabelValues(routeName, g.config.Mode, outcome).Inc()
}

// EndRequests makes what is still in flight end now, as outcome unknown where the app has not answered.
func (p *Proxy) EndRequests() { p.endAll() }

// Close delivers what the journal holds, as far as the store takes it before ctx ends, says that this process has ended, and closes the store.
// Every request must have ended.
func (p *Proxy) Close(ctx context.Context) error {
	defer p.endAll()
	defer p.upstream.transport.CloseIdleConnections()
	defer p.settler.journal.close()
	g := p.current.Load()
	if g == nil {
		return nil
	}
	p.stop()
	<-p.done
	p.settler.flush(ctx, p.enter)
	err := g.link.retire(ctx)
	g.leave()
	if err != nil {
		return fmt.Errorf("retire holder: %w", err)
	}
	return nil
}
