// SPDX-License-Identifier: Apache-2.0

// Command proxy compares the sidecar with the textbook proxy, with gofiber's idempotency middleware, and, where nothing is enforced, with Go's own reverse
// proxy; nginx is reported beside it. Each is a process of its own, in front of the same app and on the same private PostgreSQL, and all take turns. It
// prints medians of the ratios of neighbouring turns.
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
	"strings"
	"syscall"
	"time"

	"github.com/idempotency-dev/operator/internal/localpg"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench proxy:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	if len(args) > 1 && slices.Contains([]string{"app", "textbook", "reverse"}, args[0]) {
		return child(ctx, args)
	}
	b := bench{out: out}
	flags := flag.NewFlagSet("proxy", flag.ContinueOnError)
	flags.IntVar(&b.rounds, "rounds", 5, "turns of each system, per row")
	flags.DurationVar(&b.turn, "turn", 2*time.Second, "length of a turn")
	flags.StringVar(&b.only, "only", "", "measure only the rows whose name begins like this")
	version := flags.String("postgres", os.Getenv("POSTGRES_VERSION"), "major version of the server; empty: the newest installed")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if b.rounds < 3 {
		return errors.New("fewer than 3 rounds say nothing")
	}
	dir, err := os.MkdirTemp("", "bench-proxy-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	server, err := localpg.Start(ctx, localpg.Options{Version: *version, Settings: map[string]string{"max_connections": "100"}})
	if err != nil {
		return err
	}
	defer server.Stop()
	b.systems, err = start(ctx, dir, server.DSN("postgres"))
	defer b.systems.stop()
	if err != nil {
		return err
	}
	if err := errors.Join(b.sizes(), b.rows(ctx)); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, strings.Join(b.figures, "\n"))
	return err
}

// bench is a run.
type bench struct {
	rounds  int
	turn    time.Duration
	only    string
	out     io.Writer
	systems *systems
	figures []string
}

// sizes are the binary's and, before its first request, the process's.
func (b *bench) sizes() error {
	info, err := os.Stat(b.systems.binary)
	if err != nil {
		return err
	}
	resident, err := b.systems.ours.resident()
	if err != nil {
		return err
	}
	b.figure("proxy.binary.MiB", float64(info.Size())/(1<<20), "<=", 20)
	b.figure("proxy.idle.MiB", float64(resident)/(1<<20), "<=", 25)
	return nil
}

func (b *bench) figure(name string, value float64, op string, target float64) {
	verdict := "ok"
	if op == ">=" && value < target || op == "<=" && value > target {
		verdict = "short"
	}
	b.figures = append(b.figures, fmt.Sprintf("figure %s %.2f target %s%g %s", name, value, op, target, verdict))
}

// row is one workload on the sidecar and on what it is compared with; beside is only reported.
type row struct {
	name          string
	load          workload
	other, beside *process
	rate          float64 // the least ratio of rates
	p99, cpu      bool    // ratios that must not be above 1
}

func (b *bench) rows(ctx context.Context) error {
	s := b.systems
	for _, r := range []row{
		{name: "enforced.c1.vs_textbook", load: workload{"/payments", 1, false}, other: s.textbook, rate: 1},
		{name: "enforced.c8.vs_textbook", load: workload{"/payments", 8, false}, other: s.textbook, rate: 1.2},
		{name: "enforced.c64.vs_textbook", load: workload{"/payments", 64, false}, other: s.textbook, rate: 1.8, p99: true},
		{name: "enforced.c256.vs_textbook", load: workload{"/payments", 256, false}, other: s.textbook, rate: 2.2, p99: true},
		{name: "enforced.c64.vs_gofiber", load: workload{"/payments", 64, false}, other: s.fiber, rate: 1.3},
		{name: "replays.c64.vs_textbook", load: workload{"/payments", 64, true}, other: s.textbook, rate: 2},
		{name: "passed.c64.vs_reverseproxy", load: workload{"/elsewhere", 64, false}, other: s.reverse, beside: s.nginx, rate: 1, cpu: true},
	} {
		if !strings.HasPrefix(r.name, b.only) {
			continue
		}
		if err := b.compare(ctx, r); err != nil {
			return fmt.Errorf("measure %s: %w", r.name, err)
		}
	}
	return nil
}

// compare runs the systems of r by turns and adds the medians of the ratios of neighbouring turns. The first round is to warm up.
func (b *bench) compare(ctx context.Context, r row) error {
	var rates, p99s, cpus []float64
	for round := range b.rounds + 1 {
		ours, err := b.turnOf(ctx, r, round, b.systems.ours)
		if err != nil {
			return err
		}
		other, err := b.turnOf(ctx, r, round, r.other)
		if err != nil {
			return err
		}
		if r.beside != nil {
			if _, err := b.turnOf(ctx, r, round, r.beside); err != nil {
				return err
			}
		}
		if round > 0 {
			rates = append(rates, ours.rate/other.rate)
			p99s = append(p99s, float64(ours.p99)/float64(other.p99))
			cpus = append(cpus, ours.cpu/other.cpu)
		}
	}
	b.figure("proxy."+r.name, median(rates), ">=", r.rate)
	if r.p99 {
		b.figure("proxy."+r.name+".p99", median(p99s), "<=", 1)
	}
	if r.cpu {
		b.figure("proxy."+r.name+".cpu", median(cpus), "<=", 1)
	}
	return nil
}

func (b *bench) turnOf(ctx context.Context, r row, round int, p *process) (result, error) {
	got, err := p.measure(ctx, r.load, b.turn)
	if err != nil || round == 0 {
		return got, err
	}
	_, err = fmt.Fprintf(b.out, "%s round %d: %s %.0f/s, p99 %.1f ms, %.0f us of CPU and %.0f allocations per request\n",
		r.name, round, p.name, got.rate, float64(got.p99)/float64(time.Millisecond), got.cpu, got.allocs)
	return got, err
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
