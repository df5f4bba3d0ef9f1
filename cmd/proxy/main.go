// SPDX-License-Identifier: Apache-2.0

// Command proxy is the sidecar. It knows nothing of Kubernetes: a compiled policy, a connection string and an upstream are all it needs.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/keystore/redis"
	"github.com/idempotency-dev/operator/internal/proxy"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "proxy:", err)
		os.Exit(1)
	}
}

// run is the program: it logs to out and ends in order when ctx does.
func run(ctx context.Context, args []string, env func(string) string, out io.Writer) error {
	if len(args) == 1 && args[0] == "version" {
		_, err := fmt.Fprintln(out, versionLine())
		return err
	}
	if len(args) > 0 && args[0] == "redirect" {
		return redirectPorts(args[1:], out)
	}
	config, err := parse(args, env, out)
	if err != nil || config == nil {
		return err
	}
	settings := config.settings
	settings.Log = slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: config.logLevel}))
	settings.Now = time.Now
	tracer, flush := tracing(ctx, env, settings.Log)
	defer flush()
	settings.Tracer = tracer
	return proxy.Run(ctx, settings, openStore)
}

func openStore(ctx context.Context, config proxyconfig.Config, dsn string) (keystore.Store, string, error) {
	if config.Store.Type == "Redis" {
		return openRedis(redis.Config{DSN: dsn, Keyspace: config.Keyspace, MinReplicas: config.Store.MinReplicas})
	}
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

func openRedis(c redis.Config) (keystore.Store, string, error) {
	identity, err := redis.Identity(c)
	if err != nil {
		return nil, "", err
	}
	store, err := redis.Open(c)
	if err != nil {
		return nil, "", err // see above
	}
	return store, identity, nil
}

func versionLine() string {
	line := "proxy " + version
	if info, ok := debug.ReadBuildInfo(); ok {
		line += " " + info.GoVersion
	}
	return line
}
