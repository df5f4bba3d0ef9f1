// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net/http"
	"net/http/pprof" // registers itself on http.DefaultServeMux too, which nobody serves
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// admin serves probes and metrics.
type admin struct {
	http.Handler
	proxy *Proxy
	ready atomic.Bool
}

func newAdmin(p *Proxy, registry *prometheus.Registry, running http.Handler, profiles bool) *admin {
	mux := http.NewServeMux()
	a := &admin{Handler: mux, proxy: p}
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", a.readyz)
	mux.Handle("GET "+proxyconfig.RunningPath, running)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	if profiles {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return a
}

// readyz is about this process alone. A store that is down is told and does not make the pod unready: callers must get an answer that says so,
// not a refused connection. See docs/adr/0001-readiness-does-not-depend-on-the-store.md.
func (a *admin) readyz(w http.ResponseWriter, _ *http.Request) {
	if !a.ready.Load() {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, "draining or not serving yet")
		return
	}
	store := "reachable"
	if a.proxy.storeUp() == 0 {
		store = "unreachable"
	}
	fmt.Fprintf(w, "ok\nkey store: %s\n", store)
}
