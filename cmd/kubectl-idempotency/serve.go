// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/proxy"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// server serves HTTP until it is stopped.
type server struct {
	url  string
	http *http.Server
	// failed gets the error of a server that ended by itself.
	failed chan error
}

// serve serves handler on the address listen.
func serve(ctx context.Context, listen string, handler http.Handler) (*server, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", listen, err)
	}
	s := &server{
		url:    "http://" + listener.Addr().String(),
		http:   &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)},
		failed: make(chan error, 1),
	}
	go func() {
		if err := s.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- fmt.Errorf("serve %s: %w", s.url, err)
		}
	}()
	return s, nil
}

// stop waits for the requests in flight.
func (s *server) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		return fmt.Errorf("stop %s: %w", s.url, err)
	}
	return nil
}

// sidecar is the proxy in this process.
type sidecar struct {
	*server
	proxy *proxy.Proxy
	spool string
}

// startSidecar serves on listen what config says, in front of upstream.
func startSidecar(ctx context.Context, config proxyconfig.Config, dsn string, upstream *url.URL, listen string, log io.Writer) (*sidecar, error) {
	spool, err := os.MkdirTemp("", "idempotency-spool-")
	if err != nil {
		return nil, fmt.Errorf("make spool directory: %w", err)
	}
	s := &sidecar{spool: spool}
	s.proxy, err = proxy.New(proxy.Options{
		Upstream: upstream,
		Spool:    spool,
		Limits:   proxy.DefaultLimits(),
		Registry: prometheus.NewRegistry(),
		Log:      slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Now:      time.Now,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make sidecar: %w", err), os.RemoveAll(spool))
	}
	store, err := postgres.Open(ctx, postgres.Config{DSN: dsn, Schema: config.Store.Schema, Keyspace: config.Keyspace})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open key store: %w", err), s.close())
	}
	s.proxy.Load(config, store)
	if s.server, err = serve(ctx, listen, s.proxy); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// stop waits for the requests in flight and for their results to be recorded.
func (s *sidecar) stop() error { return errors.Join(s.server.stop(), s.close()) }

func (s *sidecar) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	return errors.Join(s.proxy.Close(ctx), os.RemoveAll(s.spool))
}
