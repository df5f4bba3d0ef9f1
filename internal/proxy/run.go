// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/trace"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// Opener opens the store that config and dsn name, and says what tells that store from others: the same text whenever it is opened, by whatever
// credentials, and with nothing secret in it. It fails for a bad dsn, not for a server that is down. Its error holds no part of dsn.
type Opener func(ctx context.Context, config proxyconfig.Config, dsn string) (store keystore.Store, identity string, err error)

// Settings are those of one sidecar process.
type Settings struct {
	// ConfigFile holds the compiled policy, DSNFile the connection string. Both are read again when they change.
	ConfigFile string
	DSNFile    string
	// EncryptionKeyFile holds the keys that recorded answers are encrypted with, as sealed.ParseRing reads them; read again when it changes.
	// Empty: answers are recorded in clear.
	EncryptionKeyFile string
	// Upstream is the app: http, https or h2c, with host and port.
	Upstream *url.URL
	// UpstreamCA is a file with the certificates of the authorities that vouch for an https upstream; empty: the system's, and for one on the loopback
	// nobody need. UpstreamName is the name that its certificate has to hold; empty: the URL's host.
	UpstreamCA   string
	UpstreamName string
	// Tracer takes the spans of enforced requests; nil: there are none.
	Tracer trace.Tracer
	// Pprof serves profiles on the admin address.
	Pprof bool
	// Listen is the address for traffic, Admin the one for probes and metrics.
	Listen string
	Admin  string
	// Spool is a directory of this process alone; it is made when it is missing.
	Spool string
	// DrainDelay is how long traffic is still taken after the order to end, DrainTimeout how long requests in flight have from then on.
	DrainDelay   time.Duration
	DrainTimeout time.Duration
	// Limits bound everything.
	Limits Limits
	// Log takes what an operator needs to know; Now is the clock.
	Log *slog.Logger
	Now func() time.Time
	// Listening, when set, is told both addresses once they are open.
	Listening func(traffic, admin net.Addr)
}

// Run serves until ctx ends, then drains. It returns nil after an orderly end.
func Run(ctx context.Context, s Settings, open Opener) error {
	if err := os.MkdirAll(s.Spool, 0o700); err != nil {
		return fmt.Errorf("make spool directory: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	trust, err := upstreamTLS(s.Upstream, s.UpstreamCA, s.UpstreamName)
	if err != nil {
		return err
	}
	p, err := New(Options{Upstream: s.Upstream, UpstreamTLS: trust, Spool: s.Spool, Limits: s.Limits, Registry: registry, Log: s.Log, Now: s.Now, Tracer: s.Tracer})
	if err != nil {
		return err
	}
	watch := &watcher{proxy: p, settings: s, open: open}
	if err := watch.start(ctx); err != nil {
		return errors.Join(err, p.Close(ctx))
	}
	sv, err := listen(ctx, s, p, registry, watch)
	if err != nil {
		return errors.Join(err, p.Close(ctx))
	}
	failed := sv.serve()
	watching, stopWatching := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		watch.run(watching)
	}()
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	stopWatching()
	<-watched
	return errors.Join(err, sv.drain(context.WithoutCancel(ctx)))
}

// server is the two listeners of a process.
type server struct {
	settings  Settings
	proxy     *Proxy
	admin     *admin
	traffic   *http.Server
	probes    *http.Server
	listeners [2]net.Listener
}

func listen(ctx context.Context, s Settings, p *Proxy, registry *prometheus.Registry, running http.Handler) (*server, error) {
	var config net.ListenConfig
	traffic, err := config.Listen(ctx, "tcp", s.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for traffic: %w", err)
	}
	probes, err := config.Listen(ctx, "tcp", s.Admin)
	if err != nil {
		_ = traffic.Close()
		return nil, fmt.Errorf("listen for probes: %w", err)
	}
	if s.Listening != nil {
		s.Listening(traffic.Addr(), probes.Addr())
	}
	a := newAdmin(p, registry, running, s.Pprof)
	return &server{
		settings: s, proxy: p, admin: a, listeners: [2]net.Listener{traffic, probes},
		traffic: trafficServer(s, p),
		probes:  &http.Server{Handler: a, ReadHeaderTimeout: s.Limits.ClientTimeout, IdleTimeout: s.Limits.IdleTimeout, ErrorLog: quietLog(s.Log)},
	}, nil
}

// trafficServer takes HTTP/1.1 and HTTP/2 without TLS, on one port.
func trafficServer(s Settings, p *Proxy) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           p,
		Protocols:         protocols,
		ReadHeaderTimeout: s.Limits.ClientTimeout,
		IdleTimeout:       s.Limits.IdleTimeout,
		MaxHeaderBytes:    max(s.Limits.HeaderBytes-serverSlack, 1),
		ErrorLog:          quietLog(s.Log),
	}
}

// serverSlack is what net/http reads beyond MaxHeaderBytes at least before it refuses, and how exact the limit is.
const serverSlack = 4096

// serve starts both servers; the channel gets the first error.
func (s *server) serve() <-chan error {
	failed := make(chan error, 2)
	for i, server := range []*http.Server{s.traffic, s.probes} {
		go func() {
			if err := server.Serve(s.listeners[i]); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("serve: %w", err)
			}
		}()
	}
	s.admin.ready.Store(true)
	s.settings.Log.Info("proxy is serving", "listen", s.listeners[0].Addr().String(), "admin", s.listeners[1].Addr().String())
	return failed
}
