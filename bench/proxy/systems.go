// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
	"github.com/idempotency-dev/operator/internal/retention"
)

// systems are all that is measured, each a process of its own.
type systems struct {
	ours, textbook, fiber, reverse, nginx *process
	binary                                string // of ours
	all                                   []*process
}

func (s *systems) stop() {
	for _, p := range s.all {
		p.stop()
	}
}

// start builds and starts everything on the database dsn, with files in dir.
func start(ctx context.Context, dir, dsn string) (*systems, error) {
	s := &systems{binary: filepath.Join(dir, "sidecar")}
	if err := prepare(ctx, dir, dsn); err != nil {
		return s, err
	}
	for _, build := range [][]string{
		{"build", "-trimpath", "-ldflags", "-s -w", "-o", s.binary, "./cmd/proxy"},
		{"build", "-C", "bench/proxy/fiber", "-o", filepath.Join(dir, "fiber"), "."},
	} {
		cmd := exec.CommandContext(ctx, "go", build...) //nolint:gosec // our own arguments
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return s, fmt.Errorf("build: %w: %s", err, out)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return s, err
	}
	app, err := s.spawn(ctx, "app", func(listen, _ string) (string, []string, string) { return self, []string{"app", listen}, "" })
	if err != nil {
		return s, err
	}
	upstream := "http://" + app.address
	for _, system := range []struct {
		to   **process
		name string
		how  func(listen, admin string) (program string, args []string, allocs string)
	}{
		{&s.ours, "sidecar", func(listen, admin string) (string, []string, string) {
			return s.binary, []string{
				"--config", filepath.Join(dir, proxyconfig.File), "--dsn-file", filepath.Join(dir, "dsn"), "--upstream", upstream, "--listen", listen, "--admin", admin,
				"--spool", filepath.Join(dir, "spool"), "--log-level", "warn",
			}, "http://" + admin + "/metrics"
		}},
		{&s.textbook, "textbook", func(listen, admin string) (string, []string, string) {
			return self, []string{"textbook", listen, admin, upstream, dsn}, "http://" + admin
		}},
		{&s.reverse, "ReverseProxy", func(listen, admin string) (string, []string, string) {
			return self, []string{"reverse", listen, admin, upstream}, "http://" + admin
		}},
		{&s.fiber, "gofiber", func(listen, admin string) (string, []string, string) {
			return filepath.Join(dir, "fiber"), []string{listen, admin, upstream, dsn}, "http://" + admin
		}},
		{&s.nginx, "nginx", func(listen, _ string) (string, []string, string) {
			return "nginx", []string{"-p", dir, "-e", filepath.Join(dir, "nginx.log"), "-c", nginxConfig(dir, listen, app.address)}, ""
		}},
	} {
		if *system.to, err = s.spawn(ctx, system.name, system.how); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s *systems) spawn(ctx context.Context, name string, how func(listen, admin string) (string, []string, string)) (*process, error) {
	listen, err := address(ctx)
	if err != nil {
		return nil, err
	}
	admin, err := address(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	program, args, allocs := how(listen, admin)
	p, err := spawn(ctx, name, listen, allocs, program, args...)
	if err == nil {
		s.all = append(s.all, p)
	}
	return p, err
}

// prepare makes a keyspace, the textbook's table, and the sidecar's files.
func prepare(ctx context.Context, dir, dsn string) error {
	admin, err := postgres.OpenAdmin(ctx, dsn, "")
	if err != nil {
		return err
	}
	defer admin.Close()
	if err := errors.Join(admin.Migrate(ctx), admin.EnsureKeyspace(ctx, "bench", "")); err != nil {
		return err
	}
	if _, err := retention.Run(ctx, admin.Catalogue("bench"), retention.Settings{CreateAhead: 7}, retention.SystemClock{}); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return errors.New("connect to the database")
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, textbookTable); err != nil {
		return err
	}
	document, err := proxyconfig.Encode(proxyconfig.Config{
		Version: proxyconfig.Version, Policy: proxyconfig.Policy{Namespace: "bench", Name: "bench", Generation: 1}, Keyspace: "bench", Mode: "Enforce",
		Store:  proxyconfig.Store{Type: "Postgres", Schema: "idempotency", OnUnavailable: "Reject"},
		Client: proxyconfig.Client{Type: "Header", Header: "X-Client-Id"},
		Routes: []proxyconfig.Route{{
			Name: "create-payment", Methods: []string{"POST"}, Path: "/payments", KeyRequired: true, KeyHeader: "Idempotency-Key", KeyMaxLength: 255,
			WindowMillis: (24 * time.Hour).Milliseconds(), CanonicalJSON: true, InFlight: "Reject", OnUnknownOutcome: "Block",
			ResponseMaxBytes: 1 << 20, TimeoutMillis: 30_000,
		}},
	})
	return errors.Join(err, os.WriteFile(filepath.Join(dir, proxyconfig.File), document, 0o600), os.WriteFile(filepath.Join(dir, "dsn"), []byte(dsn), 0o600))
}

// nginxConfig writes the configuration of a plain reverse proxy that keeps its connections.
func nginxConfig(dir, listen, app string) string {
	path := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf(`daemon off; worker_processes %d; pid %s/nginx.pid; error_log stderr warn;
events { worker_connections 4096; }
http {
	access_log off; keepalive_requests 100000000;
	client_body_temp_path %[2]s; proxy_temp_path %[2]s; fastcgi_temp_path %[2]s; uwsgi_temp_path %[2]s; scgi_temp_path %[2]s;
	upstream app { server %[3]s; keepalive 1024; keepalive_requests 100000000; }
	server { listen %[4]s; location / { proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ""; } }
}
`, runtime.GOMAXPROCS(0), dir, app, listen)
	_ = os.WriteFile(path, []byte(text), 0o600) // nginx says it when it is not there
	return path
}

// child is one of the systems that are this program itself: app, textbook or reverse.
func child(ctx context.Context, args []string) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", args[1])
	if err != nil {
		return err
	}
	if args[0] == "app" {
		return app(ctx, listener)
	}
	upstream, err := url.Parse(args[3])
	if err != nil {
		return err
	}
	var handler http.Handler
	if args[0] == "reverse" {
		handler = reverse(upstream)
	} else if handler, err = newTextbook(ctx, args[4], upstream); err != nil {
		return err
	}
	go func() {
		tell := func(w http.ResponseWriter, _ *http.Request) {
			var stats runtime.MemStats
			runtime.ReadMemStats(&stats)
			_, _ = fmt.Fprint(w, stats.Mallocs)
		}
		_ = http.ListenAndServe(args[2], http.HandlerFunc(tell)) //nolint:gosec // on the loopback, for as long as a benchmark
	}()
	return http.Serve(listener, handler) //nolint:gosec // on the loopback, for as long as a benchmark
}
