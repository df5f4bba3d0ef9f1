// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// killContainers ends every shim of our containerd, and with it its containers. It reads the process table instead of
// asking containerd, which may be dead. Shims are known by the socket they report to, never by name.
func (n *node) killContainers(ctx context.Context) error {
	for {
		table, err := processTable()
		if err != nil {
			return err
		}
		boot, err := bootID()
		if err != nil {
			return fmt.Errorf("read boot id: %w", err)
		}
		doomed := containerProcesses(table, n.layout.containerdSocket())
		if len(doomed) == 0 {
			return nil
		}
		for _, p := range doomed {
			r := record{PID: p.pid, Start: p.start, Boot: boot}
			if err := r.signal(syscall.SIGKILL); err != nil && r.alive() {
				return fmt.Errorf("kill container process %d: %w", p.pid, err)
			}
		}
		if err := n.pause(ctx); err != nil {
			return err
		}
	}
}

// running is one line of the process table.
type running struct {
	pid, parent int
	start       string
	argv        []string
}

// containerProcesses returns the shims that belong to the socket, after all their descendants.
func containerProcesses(table []running, socket string) []running {
	children := map[int][]running{}
	var shims []running
	for _, p := range table {
		children[p.parent] = append(children[p.parent], p)
		if at := slices.Index(p.argv, "-address"); at >= 0 && at+1 < len(p.argv) && p.argv[at+1] == socket {
			shims = append(shims, p)
		}
	}
	var found []running
	var visit func(running)
	visit = func(p running) {
		for _, child := range children[p.pid] {
			visit(child)
		}
		found = append(found, p)
	}
	for _, shim := range shims {
		visit(shim)
	}
	return found
}

func processTable() ([]running, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var table []running
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "stat"))
		if err != nil {
			continue // it has ended
		}
		state, start, err := parseStat(string(stat))
		if err != nil || state == "Z" || state == "X" {
			continue
		}
		parent, err := strconv.Atoi(strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))[1])
		if err != nil {
			continue
		}
		argv, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err != nil {
			continue
		}
		table = append(table, running{pid: pid, parent: parent, start: start, argv: strings.Split(string(argv), "\x00")})
	}
	return table, nil
}

// removeCgroups removes the kubelet's empty control groups. One that is in use cannot be removed, and stays.
func removeCgroups() {
	roots, _ := filepath.Glob("/sys/fs/cgroup/*/kubepods") // the only error is a bad pattern
	for _, root := range append(roots, "/sys/fs/cgroup/kubepods") {
		var dirs []string
		_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			_ = os.Remove(dir)
		}
	}
}

// removeStrays removes what kubelet and the network plugins keep at fixed places outside our directories.
func (n *node) removeStrays() error {
	links, _ := filepath.Glob("/var/log/containers/*.log")
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, n.layout.podLogs()+"/") {
			if err := os.Remove(link); err != nil {
				return fmt.Errorf("remove log link: %w", err)
			}
		}
	}
	results, _ := filepath.Glob("/var/lib/cni/results/" + bridge + "-*")
	for _, result := range results {
		if err := os.Remove(result); err != nil {
			return fmt.Errorf("remove network result: %w", err)
		}
	}
	return nil
}
