// SPDX-License-Identifier: Apache-2.0

// Package e2e tests the whole line on a real cluster: the one that KUBECONFIG names, else the local one of `make cluster-up`.
//
// Pods must reach a PostgreSQL server that these tests start on this machine, at the address E2E_HOST_ADDRESS
// (default: the local cluster's bridge). The images of `make images` must be on the cluster's nodes.
package e2e

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// env is what every test uses: one cluster with the operator installed, and one PostgreSQL server.
type env struct {
	cluster  *cluster
	database *database
}

var shared env

func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, m)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, m *testing.M) int {
	cluster, err := connect(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	database, err := startDatabase(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer database.stop()
	shared = env{cluster: cluster, database: database}

	say("install the operator: kubectl apply --server-side -k config/default")
	if err := cluster.installOperator(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	return m.Run()
}

var started = time.Now()

// say prints progress with the time since start.
func say(format string, args ...any) {
	fmt.Printf("%6.1fs  %s\n", time.Since(started).Seconds(), fmt.Sprintf(format, args...))
}

// root is the repository's root.
func root(elem ...string) string {
	return filepath.Join(append([]string{"..", ".."}, elem...)...)
}

// eventually polls until check returns nil, and fails the test with its last error when the time is over.
func eventually(t *testing.T, within time.Duration, check func() error) {
	t.Helper()
	if err := poll(t.Context(), within, check); err != nil {
		t.Fatalf("after %s: %v", within, err)
	}
}

func poll(ctx context.Context, within time.Duration, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}
