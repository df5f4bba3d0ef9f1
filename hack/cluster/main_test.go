// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain lets the test binary become a component, as the program does.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == launchCommand {
		fmt.Fprintln(os.Stderr, launch(os.Args[2:]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// testLayout lies in a directory of its own, with this repository as its source.
func testLayout(t *testing.T) layout {
	t.Helper()
	source, err := findSource()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	return layout{
		source: source, cache: filepath.Join(dir, "cache"),
		state: filepath.Join(dir, "state", "cluster"), run: filepath.Join(dir, "run"),
	}
}

func TestRunRefusesWrongCommandLines(t *testing.T) {
	for reason, args := range map[string][]string{
		"no command":           {},
		"unknown command":      {"start"},
		"argument for up":      {"up", "now"},
		"launch without a job": {launchCommand},
	} {
		err := run(t.Context(), args, os.Getenv, io.Discard, io.Discard)
		if !errors.Is(err, errUsage) {
			t.Errorf("%s: got %v, want errUsage", reason, err)
		}
	}
}

func TestKubeconfigPath(t *testing.T) {
	for reason, row := range map[string]struct {
		env  map[string]string
		want string
	}{
		"home":          {map[string]string{"HOME": "/h"}, "/h/.local/state/idempotency-operator/cluster/kubeconfig\n"},
		"state and all": {map[string]string{"XDG_STATE_HOME": "/s", "XDG_CACHE_HOME": "/c"}, "/s/idempotency-operator/cluster/kubeconfig\n"},
	} {
		var out bytes.Buffer
		env := func(name string) string { return row.env[name] }
		if err := run(t.Context(), []string{"kubeconfig"}, env, &out, io.Discard); err != nil {
			t.Errorf("%s: %v", reason, err)
		}
		if out.String() != row.want {
			t.Errorf("%s: got %q, want %q", reason, out.String(), row.want)
		}
	}
	if err := run(t.Context(), []string{"kubeconfig"}, func(string) string { return "" }, io.Discard, io.Discard); err == nil {
		t.Error("no home directory: no error")
	}
}

func TestAwait(t *testing.T) {
	say := newProgress(io.Discard)
	calls := 0
	err := say.await(t.Context(), "x", func(context.Context) error {
		if calls++; calls < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil || calls != 3 {
		t.Errorf("got %v after %d calls, want success after 3", err, calls)
	}

	calls, dead := 0, errors.New("dead")
	err = say.await(t.Context(), "x", func(context.Context) error { calls++; return finalError{dead} })
	if !errors.Is(err, dead) || calls != 1 {
		t.Errorf("got %v after %d calls, want to give up after 1", err, calls)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err = say.await(ctx, "x", func(context.Context) error { return dead }); !errors.Is(err, context.Canceled) || !errors.Is(err, dead) {
		t.Errorf("got %v, want the cancellation and the last error", err)
	}
}

func TestAcquireWaitsForTheOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "lock")
	first, err := acquire(t.Context(), path, newProgress(io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	told := &signalWriter{written: make(chan struct{})}
	got := make(chan error, 1)
	go func() {
		second, err := acquire(t.Context(), path, newProgress(told))
		second.Close()
		got <- err
	}()
	<-told.written // it says that it waits, so it does
	select {
	case err := <-got:
		t.Fatalf("acquired a lock that is held: %v", err)
	default:
	}
	first.Close()
	select {
	case err := <-got:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the lock was not acquired after its release")
	}
}

// signalWriter closes written at the first write.
type signalWriter struct{ written chan struct{} }

func (w *signalWriter) Write(p []byte) (int, error) {
	close(w.written)
	return len(p), nil
}

func TestFollowKeepsTheEnd(t *testing.T) {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for i := range 30 {
			lines <- fmt.Sprint(i)
		}
	}()
	got := strings.Split(follow(lines, "x", newProgress(io.Discard)), "\n")
	if len(got) != 20 || got[0] != "10" || got[19] != "29" {
		t.Errorf("got %v, want the last 20 of 30 lines", got)
	}
}
