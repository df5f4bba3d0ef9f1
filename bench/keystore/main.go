// SPDX-License-Identifier: Apache-2.0

// Command keystore compares the key store with the textbook: one table, INSERT ... ON CONFLICT DO NOTHING, then UPDATE, through a pool of 16
// connections with prepared statements. Both run on one private server, in turns. It prints medians of the ratios of neighbouring turns.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idempotency-dev/operator/internal/localpg"
)

// config of a run.
type config struct {
	rounds   int
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
	c := config{settings: map[string]string{"max_connections": "100"}}
	flags := flag.NewFlagSet("keystore", flag.ContinueOnError)
	flags.IntVar(&c.rounds, "rounds", 7, "turns of each system, per figure")
	flags.StringVar(&c.only, "only", "", "measure only the figures with this in their names")
	flags.DurationVar(&c.turn, "turn", 2*time.Second, "length of a turn")
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
	ours, err := newOurs(ctx, server.DSN("postgres"))
	if err != nil {
		return err
	}
	defer ours.close()
	textbook, err := newTextbook(ctx, server.DSN("postgres"))
	if err != nil {
		return err
	}
	defer textbook.close()

	var figures []string
	for _, f := range []struct {
		name        string
		concurrency int
		replay      bool
		target      float64
	}{
		{"keystore.pairs.c1.vs_textbook", 1, false, 0.95},
		{"keystore.pairs.c8.vs_textbook", 8, false, 0.95},
		{"keystore.pairs.c64.vs_textbook", 64, false, 2},
		{"keystore.pairs.c256.vs_textbook", 256, false, 3},
		{"keystore.replays.c64.vs_textbook", 64, true, 1.5},
	} {
		if !strings.Contains(f.name, c.only) {
			continue
		}
		ratio, err := c.compare(ctx, out, f.name, ours, textbook, f.concurrency, f.replay)
		if err != nil {
			return fmt.Errorf("measure %s: %w", f.name, err)
		}
		figures = append(figures, figure(f.name, ratio, f.target))
	}
	_, err = fmt.Fprintln(out, strings.Join(figures, "\n"))
	return err
}

func figure(name string, value, target float64) string {
	verdict := "ok"
	if value < target {
		verdict = "short"
	}
	return fmt.Sprintf("figure %s %.2f target >=%g %s", name, value, target, verdict)
}

// system is what is compared.
type system interface {
	// pair reserves a new key and completes it with answer.
	pair(ctx context.Context, key string, answer []byte) error
	// replay asks for a completed key and checks the answer.
	replay(ctx context.Context, key string, answer []byte) error
}

// compare runs turns of a and b by turns, and returns the median of a's rate over b's.
func (c config) compare(ctx context.Context, out io.Writer, name string, a, b system, concurrency int, replay bool) (float64, error) {
	ratios := make([]float64, 0, c.rounds)
	for round := range c.rounds + 1 {
		first, err := c.rate(ctx, a, concurrency, replay)
		if err != nil {
			return 0, err
		}
		second, err := c.rate(ctx, b, concurrency, replay)
		if err != nil {
			return 0, err
		}
		if round == 0 {
			continue // warming up
		}
		ratios = append(ratios, first/second)
		if _, err := fmt.Fprintf(out, "%s round %d: key store %.0f/s, textbook %.0f/s\n", name, round, first, second); err != nil {
			return 0, err
		}
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2], nil
}

// rate is how many operations a second concurrency callers get done in a closed loop.
func (c config) rate(ctx context.Context, s system, concurrency int, replay bool) (float64, error) {
	answer := []byte(strings.Repeat("x", 512))
	run := rand.Text()
	known := run + " known"
	if replay {
		if err := s.pair(ctx, known, answer); err != nil {
			return 0, err
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var done atomic.Int64
	var group sync.WaitGroup
	begin := time.Now()
	for caller := range concurrency {
		group.Go(func() {
			for n := 0; time.Since(begin) < c.turn && ctx.Err() == nil; n++ {
				var err error
				if replay {
					err = s.replay(ctx, known, answer)
				} else {
					err = s.pair(ctx, fmt.Sprintf("%s %d %d", run, caller, n), answer)
				}
				if err != nil {
					cancel(err)
					return
				}
				done.Add(1)
			}
		})
	}
	group.Wait()
	took := time.Since(begin)
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	if done.Load() < 50 {
		return 0, fmt.Errorf("only %d samples", done.Load())
	}
	return float64(done.Load()) / took.Seconds(), nil
}
