// SPDX-License-Identifier: Apache-2.0

// Command sampleapp serves the payments service of package payments: sampleapp [--listen ADDR], or the environment variable PORT.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/idempotency-dev/operator/test/sampleapp/payments"
)

// drainTimeout is how long requests in flight may take after the signal to stop.
const drainTimeout = 60 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Getenv, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "sampleapp:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends, and then until the requests in flight have been answered.
func run(ctx context.Context, args []string, env func(string) string, out io.Writer) error {
	byDefault := ":8080"
	if port := env("PORT"); port != "" {
		byDefault = ":" + port
	}
	flags := flag.NewFlagSet("sampleapp", flag.ContinueOnError)
	flags.SetOutput(out)
	listen := flags.String("listen", byDefault, "address to serve HTTP on; the environment variable PORT sets the default's port")
	if err := flags.Parse(args); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", *listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", *listen, err)
	}
	log := slog.New(slog.NewTextHandler(out, nil))
	log.Info("serving payments", "address", listener.Addr().String())

	server := &http.Server{Handler: payments.New(), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	log.Info("draining")
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	return nil
}
