// SPDX-License-Identifier: Apache-2.0

// Command keystore compares the key store with the textbook: one table, INSERT ... ON CONFLICT DO NOTHING, then UPDATE, through a pool of 16
// connections with prepared statements. Both run on one private server, in turns. It prints medians of the ratios of neighbouring turns.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/idempotency-dev/operator/internal/localpg"
)

// config of a run.
type config struct {
	rounds   int
	rows     int
	only     string
	turn     time.Duration
	version  string
	settings map[string]string
}

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench keystore:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	// Without replication a table that is filled in the transaction that made it needs no log: the benchmark's own tables are there sooner.
	c := config{settings: map[string]string{"max_connections": "100", "wal_level": "minimal", "max_wal_senders": "0"}}
	flags := flag.NewFlagSet("keystore", flag.ContinueOnError)
	flags.IntVar(&c.rounds, "rounds", 7, "turns of each system, per figure")
	flags.DurationVar(&c.turn, "turn", 2*time.Second, "length of a turn")
	flags.IntVar(&c.rows, "rows", 50_000_000, "entries in the keyspace with a window of 30 days")
	flags.StringVar(&c.only, "only", "", "measure only the figures with this in their names")
	flags.StringVar(&c.version, "postgres", os.Getenv("POSTGRES_VERSION"), "major version of the server; empty: the newest installed")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if c.rounds < 3 {
		return errors.New("fewer than 3 rounds say nothing")
	}
	server, err := localpg.Start(ctx, localpg.Options{Version: c.version, Settings: c.settings})
	if err != nil {
		return err
	}
	defer server.Stop()
	s, err := c.systems(ctx, out, server.DSN("postgres"))
	if err != nil {
		return err
	}
	defer s.close()

	var lines []string
	for _, f := range s.figures() {
		if !strings.Contains(f.name, c.only) {
			continue
		}
		value, err := c.compare(ctx, out, f)
		if err != nil {
			return fmt.Errorf("measure %s: %w", f.name, err)
		}
		lines = append(lines, f.line(value))
	}
	_, err = fmt.Fprintln(out, strings.Join(lines, "\n"))
	return err
}

// figure is a ratio of two systems, and what it should be.
type figure struct {
	name        string
	a, b        system
	concurrency int
	measure     measure
	target      float64
	atMost      bool
}

func (f figure) line(value float64) string {
	op, good := ">=", value >= f.target
	if f.atMost {
		op, good = "<=", value <= f.target
	}
	verdict := "short"
	if good {
		verdict = "ok"
	}
	return fmt.Sprintf("figure %s %.2f target %s%g %s", f.name, value, op, f.target, verdict)
}

// systems under test.
type systems struct {
	textbook *textbook
	// day has a window of one day, month and vacant one of 30. vacant has no entries at first.
	day, month, vacant *ours
}

func (c config) systems(ctx context.Context, out io.Writer, dsn string) (s *systems, err error) {
	s = &systems{}
	if s.textbook, err = newTextbook(ctx, dsn); err != nil {
		return nil, err
	}
	if s.day, err = newOurs(ctx, dsn, "day", 1); err != nil {
		return nil, err
	}
	if c.only != "" && !strings.Contains(c.only, "window30d") && !strings.Contains(c.only, "rows50m") {
		return s, nil
	}
	if s.month, err = newOurs(ctx, dsn, "month", 30); err != nil {
		return nil, err
	}
	if s.vacant, err = newOurs(ctx, dsn, "vacant", 30); err != nil {
		return nil, err
	}
	return s, fill(ctx, out, dsn, "month", c.rows)
}

func (s *systems) close() {
	s.textbook.close()
	for _, o := range []*ours{s.day, s.month, s.vacant} {
		if o != nil {
			o.close()
		}
	}
}

func (s *systems) figures() []figure {
	return []figure{
		{name: "keystore.pairs.c1.vs_textbook", a: s.day, b: s.textbook, concurrency: 1, measure: pairs, target: 0.95},
		{name: "keystore.pairs.c8.vs_textbook", a: s.day, b: s.textbook, concurrency: 8, measure: pairs, target: 0.95},
		{name: "keystore.pairs.c64.vs_textbook", a: s.day, b: s.textbook, concurrency: 64, measure: pairs, target: 2},
		{name: "keystore.pairs.c256.vs_textbook", a: s.day, b: s.textbook, concurrency: 256, measure: pairs, target: 3},
		{name: "keystore.replays.c64.vs_textbook", a: s.day, b: s.textbook, concurrency: 64, measure: replays, target: 1.5},
		{name: "keystore.pairs.window30d.c64.vs_1d", a: s.month, b: s.day, concurrency: 64, measure: pairs, target: 0.7},
		{name: "keystore.pairs.window30d.c1.vs_1d", a: s.month, b: s.day, concurrency: 1, measure: pairs, target: 0.7},
		{name: "keystore.reserve.rows50m.p99.vs_empty", a: s.month, b: s.vacant, concurrency: 8, measure: slowest, target: 1.5, atMost: true},
	}
}

// compare runs turns of a and b by turns, and returns the median of a's value over b's.
func (c config) compare(ctx context.Context, out io.Writer, f figure) (float64, error) {
	ratios := make([]float64, 0, c.rounds)
	for round := range c.rounds + 1 {
		first, err := f.measure(ctx, f.a, f.concurrency, c.turn)
		if err != nil {
			return 0, err
		}
		second, err := f.measure(ctx, f.b, f.concurrency, c.turn)
		if err != nil {
			return 0, err
		}
		if round == 0 {
			continue // warming up
		}
		ratios = append(ratios, first/second)
		if _, err := fmt.Fprintf(out, "%s round %d: %.0f against %.0f\n", f.name, round, first, second); err != nil {
			return 0, err
		}
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2], nil
}
