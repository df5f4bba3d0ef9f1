// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// stopPatience is how long a process may take to end after SIGTERM, and after SIGKILL.
const stopPatience = 10 * time.Second

// process is one component as it should run.
type process struct {
	name  string
	argv  []string
	files []string // read by it at its start: when their contents change it is restarted
	ready func(context.Context) error
}

// record identifies a process that was started, so that no other is ever taken for it: a process id is reused, but not
// with the same start time in the same boot.
type record struct {
	PID         int    `json:"pid"`
	Start       string `json:"start"` // clock ticks since the boot, as the kernel prints them
	Boot        string `json:"boot"`
	Fingerprint string `json:"fingerprint"` // what it was started with
}

// fingerprint covers the command line and the contents of the files that it names.
func (p process) fingerprint() (string, error) {
	sum := sha256.New()
	for _, arg := range p.argv {
		fmt.Fprintf(sum, "%d:%s", len(arg), arg)
	}
	for _, path := range p.files {
		data, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("fingerprint %s: %w", p.name, err)
		}
		fmt.Fprintf(sum, "%d:%s", len(data), data)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func readRecord(path string) (record, bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return record{}, false
	}
	var r record
	return r, json.Unmarshal(data, &r) == nil && r.PID > 1
}

// alive reports whether exactly the recorded process still runs.
func (r record) alive() bool {
	boot, err := bootID()
	if err != nil || boot != r.Boot {
		return false
	}
	state, start, err := processStat(r.PID)
	return err == nil && start == r.Start && state != "Z" && state != "X"
}

func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}

// processStat returns a process's state letter and start time: fields 3 and 22 of proc_pid_stat(5).
func processStat(pid int) (state, start string, err error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", "", err
	}
	return parseStat(string(data))
}

// parseStat skips the command's name, which may contain spaces and parentheses, up to the last parenthesis.
func parseStat(stat string) (state, start string, err error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return "", "", fmt.Errorf("parse process status: %d fields", len(fields))
	}
	return fields[0], fields[19], nil
}

// signal sends a signal to exactly the recorded process. FindProcess holds the process (a pidfd), so that its id cannot
// pass to another one between the check and the signal.
func (r record) signal(s syscall.Signal) error {
	p, err := os.FindProcess(r.PID)
	if err != nil {
		return err
	}
	defer func() { _ = p.Release() }()
	if !r.alive() {
		return os.ErrProcessDone
	}
	return p.Signal(s)
}

// stop ends the process recorded at path, if it runs, and forgets it.
func (n *node) stop(ctx context.Context, path string) error {
	if r, ok := readRecord(path); ok && r.alive() {
		// From here on it is not what anybody wants: a run after an interruption must not take it for a good one.
		r.Fingerprint = "stopping"
		if err := r.write(path); err != nil {
			return err
		}
		if err := r.end(ctx, n.stopPatience); err != nil {
			return fmt.Errorf("stop process %d: %w", r.PID, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("forget process: %w", err)
	}
	return nil
}

// end sends SIGTERM, and SIGKILL to what is left after the given time.
func (r record) end(ctx context.Context, patience time.Duration) error {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := r.signal(s); errors.Is(err, os.ErrProcessDone) {
			return nil
		} else if err != nil {
			return err
		}
		deadline := time.Now().Add(patience)
		for r.alive() && time.Now().Before(deadline) {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(pollInterval):
			}
		}
		if !r.alive() {
			return nil
		}
	}
	return errors.New("still alive after SIGKILL")
}

// ensure starts what does not run exactly as it should, and waits until all is ready.
func (n *node) ensure(ctx context.Context, processes ...process) error {
	for _, p := range processes {
		if err := n.ensureStarted(ctx, p); err != nil {
			return err
		}
	}
	for _, p := range processes {
		if err := n.awaitProcess(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) ensureStarted(ctx context.Context, p process) error {
	want, err := p.fingerprint()
	if err != nil {
		return err
	}
	path := n.layout.record(p.name)
	if r, ok := readRecord(path); ok && r.alive() && r.Fingerprint == want {
		return nil
	}
	if err := n.stop(ctx, path); err != nil {
		return fmt.Errorf("replace %s: %w", p.name, err)
	}
	n.say.step("starting %s", p.name)
	return n.start(ctx, p, want)
}

func (n *node) awaitProcess(ctx context.Context, p process) error {
	return n.say.await(ctx, p.name, func(ctx context.Context) error {
		err := p.ready(ctx)
		if r, ok := readRecord(n.layout.record(p.name)); err != nil && (!ok || !r.alive()) {
			return finalError{fmt.Errorf("it ended; the end of %s:\n%s", n.layout.log(p.name), tail(n.layout.log(p.name), 4096))}
		}
		return err
	})
}

// launchCommand is how this program runs itself to become a component.
const launchCommand = "launch"

// start runs p through launch. The child inherits the lock and keeps it until it has recorded itself: if this program is
// killed in between, the next run waits for the record, so no component ever runs unrecorded.
func (n *node) start(ctx context.Context, p process, fingerprint string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	if err := os.MkdirAll(filepath.Dir(n.layout.log(p.name)), 0o755); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	log, err := os.OpenFile(n.layout.log(p.name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	defer func() { _ = log.Close() }()
	reader, writer, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	defer func() { _ = reader.Close() }()
	args := append([]string{launchCommand, n.layout.record(p.name), fingerprint}, p.argv...)
	// It outlives its starter on purpose, so it does not end with the context.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), self, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{writer, n.lock}
	cmd.Env = []string{"HOME=" + n.layout.state, "PATH=" + n.path()}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = writer.Close()
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() { _ = cmd.Wait() }() // collects it if it ends before this program
	// The pipe closes when the child becomes the component; anything in it is why it could not.
	message, err := io.ReadAll(reader)
	if len(message) > 0 {
		err = errors.New(string(message))
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	return nil
}

// launch records this process and becomes the component, keeping process id and start time.
// Arguments: record file, fingerprint, command line. Files 3 and 4 are start's pipe and lock; both close at the exec.
func launch(args []string) error {
	syscall.CloseOnExec(3)
	syscall.CloseOnExec(4)
	pipe := os.NewFile(3, "pipe")
	err := launchRecorded(args)
	fmt.Fprint(pipe, err)
	return err
}

func launchRecorded(args []string) error {
	if len(args) < 3 {
		return errUsage
	}
	if err := recordSelf(args[0], args[1]); err != nil {
		return err
	}
	return syscall.Exec(args[2], args[2:], os.Environ())
}

func recordSelf(path, fingerprint string) error {
	boot, err := bootID()
	if err != nil {
		return fmt.Errorf("record process: %w", err)
	}
	_, start, err := processStat(os.Getpid())
	if err != nil {
		return fmt.Errorf("record process: %w", err)
	}
	return record{PID: os.Getpid(), Start: start, Boot: boot, Fingerprint: fingerprint}.write(path)
}

func (r record) write(path string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("record process: %w", err)
	}
	return writeFile(path, data, 0o600)
}

// tail returns the last bytes of a file, from the start of a line.
func tail(path string, bytes int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if len(data) > bytes {
		data = data[len(data)-bytes:]
		if at := strings.IndexByte(string(data), '\n'); at >= 0 {
			data = data[at+1:]
		}
	}
	return string(data)
}
