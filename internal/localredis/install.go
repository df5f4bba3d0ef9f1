// SPDX-License-Identifier: Apache-2.0

package localredis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// Install returns the path of the server's program: redis-server or valkey-server on the PATH, or the one in Debian's package redis-tools, which
// it installs when run by root. That package has the program without the service, so that no server of the machine's own begins to run.
func Install(ctx context.Context) (string, error) {
	if path, ok := find(); ok {
		return path, nil
	}
	err := installDebian(ctx, "redis-tools")
	if path, ok := find(); ok {
		return path, nil
	}
	return "", fmt.Errorf("install redis 7 (put redis-server on the PATH): %w", errors.Join(err, exec.ErrNotFound))
}

// find looks for the program. redis-check-rdb is the same file: the name that it is called by decides what it does.
func find() (string, bool) {
	for _, name := range []string{"redis-server", "valkey-server", "redis-check-rdb"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, true
		}
	}
	return "", false
}

// fakeClock returns the libraries that let a server read its clock from a file, and installs them when run by root. The C library's own
// allocator comes with them: the server's asks for the time before the clock is ready.
func fakeClock(ctx context.Context) (string, error) {
	const library = "libfaketime.so.1"
	paths := []string{
		"/usr/lib/x86_64-linux-gnu/faketime/" + library, "/usr/lib/aarch64-linux-gnu/faketime/" + library, "/usr/lib64/faketime/" + library,
	}
	look := func() string {
		for _, path := range paths {
			if _, err := os.Stat(path); err == nil {
				return path + " libc.so.6"
			}
		}
		return ""
	}
	if found := look(); found != "" {
		return found, nil
	}
	err := installDebian(ctx, "libfaketime")
	if found := look(); found != "" {
		return found, nil
	}
	return "", fmt.Errorf("install libfaketime: %w", errors.Join(err, os.ErrNotExist))
}

func installDebian(ctx context.Context, name string) error {
	if os.Getuid() != 0 {
		return errors.New("only root installs packages")
	}
	// A new machine has no lists yet; where they cannot be fetched, those that are there may still do.
	_ = exec.CommandContext(ctx, "apt-get", "update", "-qq").Run()
	cmd := exec.CommandContext(ctx, "apt-get", "install", "-y", "-qq", "--no-install-recommends", name)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("install package %s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}
