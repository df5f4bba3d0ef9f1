// SPDX-License-Identifier: Apache-2.0

// Command redis compares the key store on Redis with that on PostgreSQL, and with what gofiber's idempotency middleware asks of its Redis storage, in
// turns on private servers. Then it shows what clusters of 1, 3 and 6 primaries do on this machine. It prints medians of the ratios of neighbouring turns.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idempotency-dev/operator/internal/localpg"
	"github.com/idempotency-dev/operator/internal/localredis"
)

// callers in every turn.
const callers = 64

// config of a run.
type config struct {
	rounds int
	turn   time.Duration
}

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench redis:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var c config
	flags := flag.NewFlagSet("redis", flag.ContinueOnError)
	flags.IntVar(&c.rounds, "rounds", 5, "turns of each system, per figure")
	flags.DurationVar(&c.turn, "turn", time.Second, "length of a turn")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if c.rounds < 3 {
		return errors.New("fewer than 3 rounds say nothing")
	}
	figures, err := c.compare(ctx, out)
	if err != nil {
		return err
	}
	for _, primaries := range []int{1, 3, 6} {
		if err := c.cluster(ctx, out, primaries); err != nil {
			return fmt.Errorf("measure %d primaries: %w", primaries, err)
		}
	}
	fmt.Fprintf(out, "%d processors are shared by the callers and all servers: they are the limit here, and a server on a machine of its own is not.\n", runtime.NumCPU())
	_, err = fmt.Fprintln(out, strings.Join(figures, "\n"))
	return err
}

// compare takes turns on one server of each kind.
func (c config) compare(ctx context.Context, out io.Writer) ([]string, error) {
	database, err := localpg.Start(ctx, localpg.Options{})
	if err != nil {
		return nil, err
	}
	defer database.Stop()
	server, err := localredis.Start(ctx, localredis.Options{})
	if err != nil {
		return nil, err
	}
	defer server.Stop()
	postgres, err := newPostgres(ctx, database.DSN("postgres"))
	if err != nil {
		return nil, err
	}
	defer postgres.close()
	redis, err := newRedis(ctx, "redis://"+server.Addr())
	if err != nil {
		return nil, err
	}
	defer redis.close()
	gofiber := newGofiber(server.Addr())
	defer gofiber.close()

	var toPostgres, toGofiber []float64
	for round := range c.rounds + 1 {
		var rates [3]float64
		for i, s := range []system{redis, postgres, gofiber} {
			if rates[i], err = c.rate(ctx, s); err != nil {
				return nil, err
			}
		}
		if round == 0 {
			continue // warming up
		}
		fmt.Fprintf(out, "round %d: pairs of %d callers: Redis %.0f/s, PostgreSQL %.0f/s, gofiber on Redis %.0f/s\n", round, callers, rates[0], rates[1], rates[2])
		toPostgres, toGofiber = append(toPostgres, rates[0]/rates[1]), append(toGofiber, rates[0]/rates[2])
	}
	return []string{
		figure("redis.pairs.c64.vs_postgres", median(toPostgres), 2),
		figure("redis.pairs.c64.vs_gofiber", median(toGofiber), 1),
	}, nil
}

// cluster shows the rate on a cluster.
func (c config) cluster(ctx context.Context, out io.Writer, primaries int) error {
	cluster, err := localredis.StartCluster(ctx, localredis.ClusterOptions{Primaries: primaries})
	if err != nil {
		return err
	}
	defer cluster.Stop()
	redis, err := newRedis(ctx, "redis://"+cluster.Servers[0].Addr()+"?cluster=true")
	if err != nil {
		return err
	}
	defer redis.close()
	var rates []float64
	for round := range 4 {
		rate, err := c.rate(ctx, redis)
		if err != nil {
			return err
		}
		if round > 0 {
			rates = append(rates, rate)
		}
	}
	_, err = fmt.Fprintf(out, "cluster of %d primaries: %.0f pairs/s of %d callers\n", primaries, median(rates), callers)
	return err
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
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
}

// rate is how many pairs a second the callers get done in a closed loop.
func (c config) rate(ctx context.Context, s system) (float64, error) {
	answer := []byte(strings.Repeat("x", 512))
	run := rand.Text()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var done atomic.Int64
	var group sync.WaitGroup
	begin := time.Now()
	for caller := range callers {
		group.Go(func() {
			for n := 0; time.Since(begin) < c.turn && ctx.Err() == nil; n++ {
				if err := s.pair(ctx, fmt.Sprintf("%s %d %d", run, caller, n), answer); err != nil {
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
