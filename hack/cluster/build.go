// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
)

// component is one pinned module of hack/cluster/build and the binaries that are built from it together, because they
// share most of their packages.
type component struct {
	name     string
	module   string
	binaries []string
	output   string // file or directory below the target, for modules whose package is not named like the binary
	flags    string // linker flags; VERSION stands for the module's version
}

func components() []component {
	const stripped = "-s -w"
	return []component{
		{
			name: "kubernetes", module: "k8s.io/kubernetes",
			binaries: []string{"kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet"},
			flags: stripped + " -X k8s.io/component-base/version.gitVersion=VERSION -X k8s.io/component-base/version.gitMajor=1" +
				" -X k8s.io/component-base/version.gitMinor=MINOR -X k8s.io/client-go/pkg/version.gitVersion=VERSION",
		},
		{name: "etcd", module: "go.etcd.io/etcd/server/v3", binaries: []string{"etcd"}, output: "etcd", flags: stripped},
		{
			name: "containerd", module: "github.com/containerd/containerd/v2",
			binaries: []string{"containerd", "containerd-shim-runc-v2", "ctr"}, flags: stripped,
		},
		{name: "coredns", module: "github.com/coredns/coredns", binaries: []string{"coredns"}, flags: stripped},
	}
}

// version is the one that the component's go.mod requires.
func (c component) version(l layout) (string, error) {
	path := filepath.Join(c.source(l), "go.mod")
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read version of %s: %w", c.name, err)
	}
	file, err := modfile.Parse(path, data, nil)
	if err != nil {
		return "", fmt.Errorf("read version of %s: %w", c.name, err)
	}
	for _, r := range file.Require {
		if r.Mod.Path == c.module {
			return r.Mod.Version, nil
		}
	}
	return "", fmt.Errorf("read version of %s: %s does not require %s", c.name, path, c.module)
}

func (c component) source(l layout) string {
	return filepath.Join(l.source, "hack", "cluster", "build", c.name)
}

func (c component) directory(l layout, version string) string {
	return filepath.Join(l.cache, c.name+"-"+version)
}

func (c component) linkerFlags(version string) string {
	minor := strings.Split(version+"..", ".")[1]
	return strings.NewReplacer("VERSION", version, "MINOR", minor).Replace(c.flags)
}

// stamp identifies what a build was made of: a changed dependency or flag leads to another build at the same version.
func (c component) stamp(l layout, version string) (string, error) {
	sum := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(c.source(l), name))
		if err != nil {
			return "", fmt.Errorf("stamp %s: %w", c.name, err)
		}
		sum.Write(data)
	}
	fmt.Fprint(sum, c.linkerFlags(version), runtime.GOARCH)
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// binary is the path of a cached binary, which is there after buildAll.
func (l layout) binary(name string) string {
	for _, c := range components() {
		if slices.Contains(c.binaries, name) {
			version, err := c.version(l)
			if err != nil {
				version = "unknown"
			}
			return filepath.Join(c.directory(l, version), name)
		}
	}
	return name
}

func buildAll(ctx context.Context, l layout, say *progress) error {
	if err := buildComponents(ctx, l, say, components()); err != nil {
		return err
	}
	return linkEnvtest(l)
}

func buildComponents(ctx context.Context, l layout, say *progress, wanted []component) error {
	lock, err := acquire(ctx, filepath.Join(l.cache, "lock"), say)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	for _, c := range wanted {
		if err := c.build(ctx, l, say); err != nil {
			return err
		}
	}
	return nil
}

// build makes the component's directory in the cache, complete or not at all.
func (c component) build(ctx context.Context, l layout, say *progress) error {
	version, err := c.version(l)
	if err != nil {
		return err
	}
	stamp, err := c.stamp(l, version)
	if err != nil {
		return err
	}
	target := c.directory(l, version)
	if built, err := os.ReadFile(filepath.Join(target, "stamp")); err == nil && string(built) == stamp {
		return nil
	}
	say.step("building %s %s (once; kept in %s)", c.name, version, target)
	temporary := target + ".new"
	if err := os.RemoveAll(temporary); err != nil {
		return fmt.Errorf("build %s: %w", c.name, err)
	}
	if err := os.MkdirAll(temporary, 0o755); err != nil {
		return fmt.Errorf("build %s: %w", c.name, err)
	}
	output, pkg := temporary+"/", "tool"
	if c.output != "" {
		output, pkg = filepath.Join(temporary, c.output), c.module
	}
	if err := goBuild(ctx, say, c.source(l), c.linkerFlags(version), output, pkg); err != nil {
		return fmt.Errorf("build %s %s: %w", c.name, version, err)
	}
	if err := writeFile(filepath.Join(temporary, "stamp"), []byte(stamp), 0o644); err != nil {
		return err
	}
	if err := os.RemoveAll(target); err != nil {
		return fmt.Errorf("build %s: %w", c.name, err)
	}
	if err := os.Rename(temporary, target); err != nil {
		return fmt.Errorf("build %s: %w", c.name, err)
	}
	say.step("built %s %s", c.name, version)
	return nil
}

// goBuild builds static Linux binaries. It says every few seconds how far it is, for a cold build takes many minutes.
func goBuild(ctx context.Context, say *progress, dir, linkerFlags, output, pkg string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-v", "-trimpath", "-ldflags", linkerFlags, "-o", output, pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOFLAGS=", "GOWORK=off")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(stderr); scanner.Scan(); {
			lines <- scanner.Text()
		}
		_, _ = io.Copy(io.Discard, stderr) // a line beyond the scanner's bound must not block the compiler
	}()
	tail := follow(lines, filepath.Base(strings.TrimSuffix(output, "/")), say)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w\n%s", err, tail)
	}
	return nil
}

// follow reports a build's progress until its output ends, and returns the last lines, which say why it failed.
func follow(lines <-chan string, name string, say *progress) string {
	ticker := time.NewTicker(sayInterval)
	defer ticker.Stop()
	var tail []string
	packages, last := 0, "none yet: go reads its cache, or links"
	for {
		select {
		case line, more := <-lines:
			if !more {
				return strings.Join(tail, "\n")
			}
			last = line
			if !strings.HasPrefix(line, "go: ") {
				packages++
			}
			if tail = append(tail, line); len(tail) > 20 {
				tail = tail[1:]
			}
		case <-ticker.C:
			say.step("  %s: %d packages, latest %s", strings.TrimSuffix(name, ".new"), packages, last)
		}
	}
}

// envtestAssets prints the directory that controller-runtime's KUBEBUILDER_ASSETS expects.
func envtestAssets(ctx context.Context, l layout, say *progress, out io.Writer) error {
	wanted := slices.DeleteFunc(components(), func(c component) bool { return c.name != "kubernetes" && c.name != "etcd" })
	if err := buildComponents(ctx, l, say, wanted); err != nil {
		return err
	}
	if err := linkEnvtest(l); err != nil {
		return err
	}
	_, err := fmt.Fprintln(out, l.envtest())
	return err
}

func linkEnvtest(l layout) error {
	if err := os.MkdirAll(l.envtest(), 0o755); err != nil {
		return fmt.Errorf("link envtest assets: %w", err)
	}
	for _, name := range []string{"kube-apiserver", "etcd", "kubectl"} {
		link, target := filepath.Join(l.envtest(), name), l.binary(name)
		if at, err := os.Readlink(link); err == nil && at == target {
			continue
		}
		temporary := link + ".new"
		if err := os.Remove(temporary); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("link envtest assets: %w", err)
		}
		if err := os.Symlink(target, temporary); err != nil {
			return fmt.Errorf("link envtest assets: %w", err)
		}
		if err := os.Rename(temporary, link); err != nil {
			return fmt.Errorf("link envtest assets: %w", err)
		}
	}
	return nil
}

// command runs a program to its end and returns its output; the error quotes what it printed.
func command(ctx context.Context, stdin io.Reader, name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("run %s: %w: %s", filepath.Base(name), err, strings.TrimSpace(stderr.String()+stdout.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
}
