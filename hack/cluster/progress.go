// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// progress prints steps with the time since the start, for a person who waits.
type progress struct {
	out   io.Writer
	start time.Time
}

func newProgress(out io.Writer) *progress { return &progress{out: out, start: time.Now()} }

func (p *progress) step(format string, args ...any) {
	fmt.Fprintf(p.out, "[%6.1fs] %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, args...))
}

// patience is how long one condition may take, and pollInterval how often it is looked at.
const (
	patience     = 5 * time.Minute
	pollInterval = 100 * time.Millisecond
	sayInterval  = 15 * time.Second
)

// await polls until check succeeds, and says what it waits for when that takes long. An error wrapped by finalError ends it.
func (p *progress) await(ctx context.Context, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	poll, say := time.NewTicker(pollInterval), time.NewTicker(sayInterval)
	defer poll.Stop()
	defer say.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if final := (finalError{}); errors.As(err, &final) {
			return fmt.Errorf("await %s: %w", what, final.error)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("await %s: %w: %w", what, ctx.Err(), err)
		case <-say.C:
			p.step("still waiting for %s: %v", what, err)
		case <-poll.C:
		}
	}
}

// finalError is an error that waiting cannot cure.
type finalError struct{ error }

// acquire takes the lock that serializes changes, waiting for whoever holds it. The kernel drops it when the last
// process that holds the file ends, however it ends; see launch for the one that inherits it.
func acquire(ctx context.Context, path string, say *progress) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	told := false
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			_ = file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !told {
			say.step("waiting for another run to finish (%s)", path)
			told = true
		}
		select {
		case <-ctx.Done():
			_ = file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, ctx.Err())
		case <-time.After(pollInterval):
		}
	}
}
