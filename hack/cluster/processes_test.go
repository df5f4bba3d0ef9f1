// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestRecordAlive(t *testing.T) {
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	_, start, err := processStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for reason, row := range map[string]struct {
		record record
		want   bool
	}{
		"this process":                    {record{PID: os.Getpid(), Start: start, Boot: boot}, true},
		"its id, started at another time": {record{PID: os.Getpid(), Start: start + "0", Boot: boot}, false},
		"its id and time, another boot":   {record{PID: os.Getpid(), Start: start, Boot: "other"}, false},
		"no such process":                 {record{PID: 1 << 30, Start: start, Boot: boot}, false},
	} {
		if got := row.record.alive(); got != row.want {
			t.Errorf("%s: alive %v, want %v", reason, got, row.want)
		}
		if err := row.record.signal(0); (err == nil) != row.want {
			t.Errorf("%s: signal: %v", reason, err)
		}
	}
}

func TestParseStat(t *testing.T) {
	for _, row := range []struct{ reason, stat, state, start string }{
		{"plain", "7 (sleep) S 1 7 7 0 -1 4 5 0 0 0 0 0 0 0 20 0 1 0 1234 8 9", "S", "1234"},
		{"name with spaces and parentheses", "7 (a) R (b c) Z 1 7 7 0 -1 4 5 0 0 0 0 0 0 0 20 0 1 0 99 8 9", "Z", "99"},
	} {
		state, start, err := parseStat(row.stat)
		if err != nil || state != row.state || start != row.start {
			t.Errorf("%s: got %q %q %v, want %q %q", row.reason, state, start, err, row.state, row.start)
		}
	}
	if _, _, err := parseStat("7 (sleep) S 1"); err == nil {
		t.Error("cut short: no error")
	}
}

// testNode can start processes; what it starts is stopped at the end of the test.
func testNode(t *testing.T) *node {
	t.Helper()
	lock, err := acquire(t.Context(), filepath.Join(t.TempDir(), "lock"), newProgress(io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	n := &node{layout: testLayout(t), say: newProgress(io.Discard), lock: lock, stopPatience: time.Second}
	t.Cleanup(func() {
		for _, path := range must(filepath.Glob(n.layout.record("*"))) {
			if err := n.stop(context.Background(), path); err != nil {
				t.Error(err)
			}
		}
		lock.Close()
	})
	return n
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// shell is a component that runs a script; it is ready when the script has made the file.
func (n *node) shell(name, script string, files ...string) process {
	made := n.layout.data(name)
	return process{
		name: name, argv: []string{"/bin/sh", "-c", script, name, made}, files: files,
		ready: func(context.Context) error { _, err := os.Stat(made); return err },
	}
}

const serve = `mkdir -p "${1%/*}"; : >"$1"; exec sleep 1000`

func TestEnsureStartsOnceAndReplacesWhatChanged(t *testing.T) {
	n := testNode(t)
	config := n.layout.config("x")
	write(t, config, []byte("one"))
	pid := func(p process) int {
		t.Helper()
		if err := n.ensure(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		r, ok := readRecord(n.layout.record(p.name))
		if !ok || !r.alive() {
			t.Fatalf("%s does not run as recorded: %+v", p.name, r)
		}
		return r.PID
	}
	first := pid(n.shell("x", serve, config))
	if second := pid(n.shell("x", serve, config)); second != first {
		t.Errorf("nothing changed: process %d became %d", first, second)
	}
	write(t, config, []byte("two"))
	changed := pid(n.shell("x", serve, config))
	if changed == first {
		t.Error("the file changed: the process did not")
	}
	if again := pid(n.shell("x", serve+" ", config)); again == changed {
		t.Error("the command line changed: the process did not")
	}
}

func TestEnsureReplacesWhatIsBeingStopped(t *testing.T) {
	n := testNode(t)
	p := n.shell("x", `trap '' TERM; mkdir -p "${1%/*}"; : >"$1"; while :; do sleep 1; done`)
	if err := n.ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	// An interrupted stop: the signal is sent, the process has not ended yet.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.stop(ctx, n.layout.record("x")); !errors.Is(err, context.Canceled) {
		t.Fatalf("stop: got %v, want it interrupted", err)
	}
	stopped, ok := readRecord(n.layout.record("x"))
	if !ok || !stopped.alive() {
		t.Fatal("the record of a process that still runs is lost")
	}
	if err := stopped.signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := n.ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if r, _ := readRecord(n.layout.record("x")); r.PID == stopped.PID {
		t.Error("a process that is being stopped was taken for a good one")
	}
}

func TestEnsureReportsWhyAComponentEnded(t *testing.T) {
	n := testNode(t)
	err := n.ensure(t.Context(), n.shell("x", "echo port taken >&2; exit 1"))
	if err == nil || !strings.Contains(err.Error(), "port taken") {
		t.Errorf("got %v, want the end of its log", err)
	}
	missing := process{name: "y", argv: []string{"/nowhere/y"}}
	if err := n.ensure(t.Context(), missing); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("got %v, want that the program is missing", err)
	}
}

// A component inherits the lock only until it has recorded itself: if it kept it, no later run could change anything.
func TestComponentDoesNotKeepTheLock(t *testing.T) {
	n := testNode(t)
	if err := n.ensure(t.Context(), n.shell("x", serve)); err != nil {
		t.Fatal(err)
	}
	n.lock.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	lock, err := acquire(ctx, n.lock.Name(), newProgress(io.Discard))
	if err != nil {
		t.Fatalf("the running component holds the lock: %v", err)
	}
	lock.Close()
}

func TestStopEndsAProcessThatIgnoresSIGTERM(t *testing.T) {
	n := testNode(t)
	if err := n.ensure(t.Context(), n.shell("x", `trap '' TERM; mkdir -p "${1%/*}"; : >"$1"; while :; do sleep 1; done`)); err != nil {
		t.Fatal(err)
	}
	r, _ := readRecord(n.layout.record("x"))
	if err := n.stop(t.Context(), n.layout.record("x")); err != nil {
		t.Fatal(err)
	}
	if r.alive() {
		t.Error("it still runs")
	}
	if _, ok := readRecord(n.layout.record("x")); ok {
		t.Error("its record is left")
	}
}

func TestStopSparesAnotherProcessWithTheSameID(t *testing.T) {
	n := testNode(t)
	if err := n.ensure(t.Context(), n.shell("x", serve)); err != nil {
		t.Fatal(err)
	}
	r, _ := readRecord(n.layout.record("x"))
	reused := r
	reused.Start = "1"
	path := n.layout.record("reused")
	if err := reused.write(path); err != nil {
		t.Fatal(err)
	}
	if err := n.stop(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if !r.alive() {
		t.Error("a process that was not ours was ended")
	}
}

func TestContainerProcesses(t *testing.T) {
	shim := func(pid int, socket string) running {
		return running{pid: pid, parent: 1, argv: []string{"containerd-shim-runc-v2", "-namespace", "k8s.io", "-address", socket}}
	}
	table := []running{
		{pid: 1},
		shim(10, "/run/ours.sock"),
		shim(20, "/run/theirs.sock"),
		{pid: 11, parent: 10, argv: []string{"/pause"}},
		{pid: 12, parent: 11, argv: []string{"/app"}},
		{pid: 21, parent: 20, argv: []string{"/app"}},
		{pid: 30, parent: 1, argv: []string{"grep", "/run/ours.sock"}},
		{pid: 31, parent: 1, argv: []string{"odd", "-address"}},
	}
	var got []int
	for _, p := range containerProcesses(table, "/run/ours.sock") {
		got = append(got, p.pid)
	}
	if want := []int{12, 11, 10}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v: ours only, children first", got, want)
	}
}

// A starter that is killed while its child is on the way must not free the lock before the child has recorded itself.
func TestLaunchHoldsTheLockUntilItIsRecorded(t *testing.T) {
	n := testNode(t)
	gate := filepath.Join(t.TempDir(), "record.json.new")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	path := strings.TrimSuffix(gate, ".new") // writing the record now blocks until somebody reads the pipe
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	cmd := exec.Command(must(os.Executable()), launchCommand, path, "print", "/bin/sleep", "1000")
	cmd.ExtraFiles = []*os.File{writer, n.lock}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	writer.Close()
	n.lock.Close() // as if this process had been killed

	other, err := os.OpenFile(n.lock.Name(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := syscall.Flock(int(other.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Fatalf("lock the other run: got %v, want it refused while the child is not recorded", err)
	}
	content, err := os.ReadFile(gate)
	if err != nil || !strings.Contains(string(content), `"fingerprint":"print"`) {
		t.Fatalf("recorded %q, %v", content, err)
	}
	if _, err := io.ReadAll(reader); err != nil { // ends when the child becomes the component
		t.Fatal(err)
	}
	if err := syscall.Flock(int(other.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Errorf("lock after the record: %v", err)
	}
}
