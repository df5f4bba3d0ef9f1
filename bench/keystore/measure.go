// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// fewest samples that say anything.
const fewest = 50

// measure lets concurrency callers of s call in a closed loop for the length of a turn, and returns a number for it.
type measure func(ctx context.Context, s system, concurrency int, turn time.Duration) (float64, error)

func answer() []byte { return []byte(strings.Repeat("x", 512)) }

// pairs is how many new keys are reserved and completed in a second.
func pairs(ctx context.Context, s system, concurrency int, turn time.Duration) (float64, error) {
	times, took, err := load(ctx, concurrency, turn, func(ctx context.Context, key string) error { return s.pair(ctx, key, answer()) })
	return float64(len(times)) / took.Seconds(), err
}

// replays is how many answers are replayed in a second, all of them of one key.
func replays(ctx context.Context, s system, concurrency int, turn time.Duration) (float64, error) {
	known := rand.Text()
	if err := s.pair(ctx, known, answer()); err != nil {
		return 0, err
	}
	times, took, err := load(ctx, concurrency, turn, func(ctx context.Context, _ string) error { return s.replay(ctx, known, answer()) })
	return float64(len(times)) / took.Seconds(), err
}

// slowest is the time in microseconds within which 99 of 100 reservations of new keys are made.
func slowest(ctx context.Context, s system, concurrency int, turn time.Duration) (float64, error) {
	times, _, err := load(ctx, concurrency, turn, func(ctx context.Context, key string) error {
		_, _, err := s.(*ours).reserve(ctx, key)
		return err
	})
	if err != nil {
		return 0, err
	}
	slices.Sort(times)
	return float64(times[len(times)*99/100].Microseconds()), nil
}

// load is a closed loop. It returns how long each call took, and all of them together.
func load(ctx context.Context, concurrency int, turn time.Duration, call func(context.Context, string) error) ([]time.Duration, time.Duration, error) {
	run := rand.Text()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	times := make([][]time.Duration, concurrency)
	var group sync.WaitGroup
	begin := time.Now()
	for caller := range concurrency {
		group.Go(func() {
			for n := 0; time.Since(begin) < turn && ctx.Err() == nil; n++ {
				started := time.Now()
				if err := call(ctx, fmt.Sprintf("%s %d %d", run, caller, n)); err != nil {
					cancel(err)
					return
				}
				times[caller] = append(times[caller], time.Since(started))
			}
		})
	}
	group.Wait()
	took := time.Since(begin)
	if err := context.Cause(ctx); err != nil {
		return nil, took, err
	}
	all := slices.Concat(times...)
	if len(all) < fewest {
		return nil, took, fmt.Errorf("only %d samples", len(all))
	}
	return all, took, nil
}
