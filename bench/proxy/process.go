// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is one system, on its own.
type process struct {
	name    string
	address string
	allocs  string // URL of the number of allocations so far, alone or as a metric; empty: it does not tell
	cmd     *exec.Cmd
	ended   chan struct{}
}

// spawn starts a program that serves address, and waits until it does.
func spawn(ctx context.Context, name, address, allocs, program string, args ...string) (*process, error) {
	p := &process{name: name, address: address, allocs: allocs, ended: make(chan struct{}), cmd: exec.Command(program, args...)} //nolint:gosec,noctx // our own programs; stop ends them
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	var dialer net.Dialer
	for {
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err == nil {
			return p, conn.Close()
		}
		select {
		case <-p.ended:
			return nil, fmt.Errorf("start %s: it has ended", name)
		case <-ctx.Done():
			p.stop()
			return nil, fmt.Errorf("start %s: %w", name, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// stop ends the process and its children.
func (p *process) stop() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.ended
	}
}

// measure runs a turn on p.
func (p *process) measure(ctx context.Context, w workload, turn time.Duration) (result, error) {
	var r result
	cpu, err := p.cpu()
	if err != nil {
		return r, err
	}
	before, err := p.allocations(ctx)
	if err != nil {
		return r, err
	}
	if r.requests, r.rate, r.p99, err = drive(ctx, p.address, w, turn); err != nil {
		return r, fmt.Errorf("%s: %w", p.name, err)
	}
	after, err := p.allocations(ctx)
	if err != nil {
		return r, err
	}
	spent, err := p.cpu()
	r.cpu = float64((spent - cpu).Microseconds()) / float64(r.requests)
	r.allocs = (after - before) / float64(r.requests)
	return r, err
}

// cpu is the processor time of the process and its children: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
func (p *process) cpu() (time.Duration, error) {
	group := strconv.Itoa(p.cmd.Process.Pid)
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	ticks := 0
	for _, path := range stats {
		text, err := os.ReadFile(path) //nolint:gosec // of the kernel
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(rest); len(fields) > 12 && fields[2] == group {
			user, _ := strconv.Atoi(fields[11])
			system, _ := strconv.Atoi(fields[12])
			ticks += user + system
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil // USER_HZ is 100 on every architecture that Go runs on
}

func (p *process) allocations(ctx context.Context) (float64, error) {
	if p.allocs == "" {
		return 0, nil
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.allocs, nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		text, _ := strings.CutPrefix(lines.Text(), "go_memstats_mallocs_total ")
		if n, err := strconv.ParseFloat(text, 64); err == nil {
			_, _ = io.Copy(io.Discard, response.Body)
			return n, nil
		}
	}
	return 0, errors.New("no number of allocations")
}

// resident is the process's resident memory in bytes.
func (p *process) resident() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0, errors.New("no resident memory")
	}
	kilobytes, err := strconv.ParseInt(fields[0], 10, 64)
	return kilobytes << 10, err
}

// address is one on the loopback that nobody listens on.
func address(ctx context.Context) (string, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}
