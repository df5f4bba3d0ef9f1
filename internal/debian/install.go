// SPDX-License-Identifier: Apache-2.0

// Package debian installs packages of the distribution, for private servers.
package debian

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// lockFile keeps processes that install something from each other: apt itself fails where another is at work.
const lockFile = "/var/cache/apt/idempotency.lock"

// install is a shell's, with the package as its argument. A new machine has no lists yet; where they cannot be fetched, those that are there may still do.
const install = `apt-get update -qq || true
exec apt-get install -y -qq --no-install-recommends -o Dpkg::Options::=--force-confold -o DPkg::Lock::Timeout=600 "$1"`

// Install installs the package when run by root, after everybody else who is installing one.
func Install(ctx context.Context, name string) error {
	if os.Getuid() != 0 {
		return errors.New("only root installs packages")
	}
	cmd := exec.CommandContext(ctx, "flock", lockFile, "sh", "-c", install, "sh", name) //nolint:gosec // the script is a constant
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "UCF_FORCE_CONFFOLD=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("install package %s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}
