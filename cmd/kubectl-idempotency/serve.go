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
	"path/filepath"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/proxy"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
	"github.com/idempotency-dev/operator/test/sampleapp/payments"
)

// endTimeout bounds how long the end of a trial may take, with the requests that are in flight.
const endTimeout = 30 * time.Second

// startApp serves the bundled app on a free port. stop waits for the requests in flight.
func startApp(ctx context.Context, app *payments.Service) (at *url.URL, stop func() error, err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, fmt.Errorf("listen for the payments service: %w", err)
	}
	server := &http.Server{Handler: app, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	stop = func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		err := server.Shutdown(ctx)
		if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
			err = errors.Join(err, ended)
		}
		if err != nil {
			return fmt.Errorf("stop the payments service: %w", err)
		}
		return nil
	}
	return &url.URL{Scheme: "http", Host: listener.Addr().String()}, stop, nil
}

// sidecar is the proxy in this process, with its files in a directory of its own.
type sidecar struct {
	// url and admin are where it serves traffic, and probes and metrics.
	url, admin string
	dir        string
	cancel     context.CancelFunc
	ended      chan error
}

// front is what a sidecar is started with: it serves on listen what config says, in front of upstream. keyFile may be empty.
type front struct {
	config       proxyconfig.Config
	dsn, keyFile string
	upstream     *url.URL
	listen       string
}

func startSidecar(ctx context.Context, f front, log io.Writer) (*sidecar, error) {
	dir, err := os.MkdirTemp("", "idempotency-local-")
	if err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	settings := proxy.Settings{
		ConfigFile:        filepath.Join(dir, proxyconfig.File),
		DSNFile:           filepath.Join(dir, "dsn"),
		EncryptionKeyFile: f.keyFile,
		Upstream:          f.upstream,
		Listen:            f.listen,
		Admin:             "127.0.0.1:0",
		Spool:             filepath.Join(dir, "spool"),
		DrainTimeout:      endTimeout,
		Limits:            proxy.DefaultLimits(),
		Log:               slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Now:               time.Now,
	}
	document, err := proxyconfig.Encode(f.config)
	if err == nil {
		err = errors.Join(os.WriteFile(settings.ConfigFile, document, 0o600), os.WriteFile(settings.DSNFile, []byte(f.dsn), 0o600))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("write the sidecar's files: %w", err), os.RemoveAll(dir))
	}
	return runSidecar(ctx, settings, dir)
}

func runSidecar(ctx context.Context, settings proxy.Settings, dir string) (*sidecar, error) {
	s := &sidecar{dir: dir, ended: make(chan error, 1)}
	listening := make(chan struct{})
	settings.Listening = func(traffic, admin net.Addr) {
		s.url, s.admin = "http://"+traffic.String(), "http://"+admin.String()
		close(listening)
	}
	// The end of ctx is the beginning of the end: stop decides when the sidecar's turn has come.
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go func() { s.ended <- proxy.Run(ctx, settings, openStore) }()
	select {
	case <-listening:
		return s, nil
	case err := <-s.ended:
		s.ended <- err
		return nil, s.stop()
	}
}

// stop waits for the requests in flight and for their results to be recorded.
func (s *sidecar) stop() error {
	s.cancel()
	err := <-s.ended
	if err != nil {
		err = fmt.Errorf("run the sidecar: %w", err)
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

func openStore(ctx context.Context, config proxyconfig.Config, dsn string) (keystore.Store, string, error) {
	c := postgres.Config{DSN: dsn, Schema: config.Store.Schema, Keyspace: config.Keyspace}
	identity, err := postgres.Identity(c)
	if err != nil {
		return nil, "", err
	}
	store, err := postgres.Open(ctx, c)
	if err != nil {
		return nil, "", err // not the nil store behind an interface
	}
	return store, identity, nil
}
