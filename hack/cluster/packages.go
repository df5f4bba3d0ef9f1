// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// systemTools are the host's programs that the node uses, and the Debian packages that bring them. runc is not built
// like the rest: without libseccomp, which needs C, it refuses the seccomp profile of restricted pods.
var systemTools = []struct{ program, pkg string }{
	{"runc", "runc"},
	{"nft", "nftables"},
	{"ip", "iproute2"},
}

// pluginDirectories are where distributions put the network plugins, which are on no PATH.
var pluginDirectories = []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"}

const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// prepareHost checks what cannot be installed, installs what can, and returns the directory of the network plugins.
func prepareHost(ctx context.Context, say *progress) (plugins string, err error) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		return "", errors.New("prepare host: the local cluster needs Linux and root; with Docker and kind, set CLUSTER=kind")
	}
	// A user's PATH, also root's, often lacks sbin; the commands of this program must be found as the node's are.
	if err := os.Setenv("PATH", os.Getenv("PATH")+":"+systemPath); err != nil {
		return "", fmt.Errorf("prepare host: %w", err)
	}
	missing := missingPackages()
	if len(missing) > 0 {
		if err := install(ctx, say, missing); err != nil {
			return "", err
		}
	}
	if missing := missingPackages(); len(missing) > 0 {
		return "", fmt.Errorf("prepare host: still missing after installation: %s", strings.Join(missing, " "))
	}
	return findPlugins(), nil
}

func missingPackages() []string {
	var missing []string
	for _, tool := range systemTools {
		if _, err := exec.LookPath(tool.program); err != nil {
			missing = append(missing, tool.pkg)
		}
	}
	if findPlugins() == "" {
		missing = append(missing, "containernetworking-plugins")
	}
	return missing
}

func findPlugins() string {
	for _, dir := range pluginDirectories {
		if _, err := os.Stat(filepath.Join(dir, "bridge")); err == nil {
			return dir
		}
	}
	return ""
}

func install(ctx context.Context, say *progress, packages []string) error {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("prepare host: install what Debian calls %s, then run this again", strings.Join(packages, " "))
	}
	say.step("installing Debian packages: %s", strings.Join(packages, " "))
	arguments := append([]string{"DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "--no-install-recommends"}, packages...)
	_, err := command(ctx, nil, "env", arguments...)
	if err == nil {
		return nil
	}
	// A fresh machine has no package lists yet.
	if _, err := command(ctx, nil, "apt-get", "update"); err != nil {
		return fmt.Errorf("install packages: %w", err)
	}
	if _, err := command(ctx, nil, "env", arguments...); err != nil {
		return fmt.Errorf("install packages: %w", err)
	}
	return nil
}

// hostResolver is the resolver configuration that pods may use: the stub of systemd-resolved listens on the host's
// loopback, which a pod cannot reach.
func hostResolver() string {
	const resolved = "/run/systemd/resolve/resolv.conf"
	if _, err := os.Stat(resolved); err == nil {
		return resolved
	}
	return "/etc/resolv.conf"
}
