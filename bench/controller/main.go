// SPDX-License-Identifier: Apache-2.0

// Command controller runs the manager's program against a real API server with thousands of policies and pods, on one real PostgreSQL server.
// Pods are objects without a kubelet; their sidecars are listeners that name the configuration in the ConfigMap. It measures a cold start with
// keyspaces that exist, as after an upgrade; what a manager that has nothing to do writes; and how soon an edit is in its ConfigMap.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
)

// config of a run.
type config struct {
	policies, namespaces, pods, edits int
	steady, limit                     time.Duration
}

func main() {
	ctrl.SetLogger(logr.Discard())
	signal.Ignore(syscall.SIGPIPE) // whoever reads may go: what was started is ended all the same
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench controller:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var c config
	flags := flag.NewFlagSet("controller", flag.ContinueOnError)
	flags.IntVar(&c.policies, "policies", 5000, "policies")
	flags.IntVar(&c.namespaces, "namespaces", 1000, "namespaces, with equally many policies each")
	flags.IntVar(&c.pods, "pods", 10000, "pods, equally many for each policy")
	flags.IntVar(&c.edits, "edits", 200, "policies that are edited, one after another")
	flags.DurationVar(&c.steady, "steady", 5*time.Minute, "how long nothing is done")
	flags.DurationVar(&c.limit, "limit", 30*time.Minute, "how long the manager may take until every policy is ready")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if c.namespaces < 1 || c.policies < c.namespaces || c.pods < c.policies || c.policies > 60000 || c.edits < 1 {
		return errors.New("there are at least as many policies as namespaces, as many pods as policies, and one edit")
	}
	b := &bench{config: c, out: out, start: time.Now()}
	defer b.close()
	figures, err := b.measure(ctx)
	if err != nil {
		return err
	}
	for _, f := range figures {
		fmt.Fprintln(out, f)
	}
	return nil
}

// measure is the whole run.
func (b *bench) measure(ctx context.Context) ([]string, error) {
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	b.say("the first manager makes every keyspace")
	took, err := b.startManager(ctx)
	if err != nil {
		return nil, err
	}
	b.say("%d policies were ready after %.1f s, which had neither keyspaces nor ConfigMaps before", b.policies, took.Seconds())
	if err := b.stopManager(); err != nil {
		return nil, err
	}
	cold, err := b.startManager(ctx)
	if err != nil {
		return nil, err
	}
	b.say("the second manager saw all of it ready after %.1f s", cold.Seconds())
	if err := b.settle(ctx); err != nil {
		return nil, err
	}
	b.say("nothing is done for %s", b.steady)
	writes, statements, err := b.idle(ctx)
	if err != nil {
		return nil, err
	}
	b.say("%d API writes, %d statements of DDL", writes, statements)
	delays, err := b.edit(ctx)
	if err != nil {
		return nil, err
	}
	peak, err := b.peakMemory()
	if err != nil {
		return nil, err
	}
	slices.Sort(delays)
	at := func(q float64) float64 { return float64(delays[int(q*float64(len(delays)-1))].Microseconds()) / 1000 }
	b.say("edits in their ConfigMap: median %.0f ms, p99 %.0f ms, longest %.0f ms", at(.5), at(.99), at(1))
	return []string{
		figure("controller.cold_start_s", cold.Seconds(), 180),
		figure("controller.rss_mib", peak, 250),
		figure("controller.steady.api_writes", float64(writes), 0),
		figure("controller.steady.ddl", float64(statements), 0),
		figure("controller.edit_to_configmap.p99_ms", at(.99), 1000),
	}, b.stopManager()
}

// figure is a line for scripts. The target is the most that it may be.
func figure(name string, value, target float64) string {
	verdict := "short"
	if value <= target {
		verdict = "ok"
	}
	return fmt.Sprintf("figure %s %.1f target <=%g %s", name, value, target, verdict)
}
