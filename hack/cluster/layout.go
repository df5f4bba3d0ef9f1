// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// layout says where everything is. Nothing the cluster makes lies in the source tree.
type layout struct {
	source string // this repository
	cache  string // binaries, kept across clusters
	state  string // one cluster: certificates, configuration, data, logs; removed by down
	run    string // sockets, process records, mounts: worthless after a reboot; short, for socket paths end at 107 bytes
}

func newLayout(env func(string) string) (layout, error) {
	source, err := findSource()
	if err != nil {
		return layout{}, err
	}
	home := env("HOME")
	cache, state := env("XDG_CACHE_HOME"), env("XDG_STATE_HOME")
	if home == "" && (cache == "" || state == "") {
		return layout{}, errors.New("find home directory: HOME is not set")
	}
	if cache == "" {
		cache = filepath.Join(home, ".cache")
	}
	if state == "" {
		state = filepath.Join(home, ".local", "state")
	}
	return layout{
		source: source,
		cache:  filepath.Join(cache, "idempotency-operator"),
		state:  filepath.Join(state, "idempotency-operator", "cluster"),
		run:    "/run/idempotency-operator",
	}, nil
}

// findSource walks up to the repository's root: `go run` may start the program in any directory below it.
func findSource() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find source: %w", err)
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "hack", "cluster", "build")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("find source: %s is not inside the repository", dir)
		}
	}
}

func (l layout) kubeconfig() string          { return filepath.Join(l.state, "kubeconfig") }
func (l layout) certificate(n string) string { return filepath.Join(l.state, "certificates", n) }
func (l layout) config(n string) string      { return filepath.Join(l.state, "config", n) }
func (l layout) data(n string) string        { return filepath.Join(l.state, "data", n) }
func (l layout) log(n string) string         { return filepath.Join(l.state, "logs", n+".log") }
func (l layout) podLogs() string             { return filepath.Join(l.state, "logs", "pods") }
func (l layout) record(n string) string      { return filepath.Join(l.run, "processes", n+".json") }
func (l layout) ownerFile() string           { return filepath.Join(l.run, "owner.json") }
func (l layout) containerdSocket() string    { return filepath.Join(l.run, "containerd.sock") }
func (l layout) envtest() string             { return filepath.Join(l.cache, "envtest") }

// writeFile replaces path by data in one step, so that a kill leaves the old file or the new one.
func writeFile(path string, data []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	temporary := path + ".new"
	if err := os.WriteFile(temporary, data, mode); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
