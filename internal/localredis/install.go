// SPDX-License-Identifier: Apache-2.0

package localredis

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/idempotency-dev/operator/internal/debian"
)

// Install returns the path of the server's program: redis-server or valkey-server on the PATH, or the one in Debian's package redis-tools, which
// it installs when run by root. That package has the program without the service, so that no server of the machine's own begins to run.
func Install(ctx context.Context) (string, error) {
	if path, ok := find(); ok {
		return path, nil
	}
	err := debian.Install(ctx, "redis-tools")
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
	err := debian.Install(ctx, "libfaketime")
	if found := look(); found != "" {
		return found, nil
	}
	return "", fmt.Errorf("install libfaketime: %w", errors.Join(err, os.ErrNotExist))
}
