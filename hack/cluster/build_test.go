// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// testComponent is a module whose program is in a directory next to it, so that building it needs no network.
func testComponent(t *testing.T) (component, layout) {
	t.Helper()
	l := testLayout(t)
	l.source = t.TempDir()
	c := component{name: "hello", module: "example.com/hello", binaries: []string{"hello"}, flags: "-X main.version=VERSION"}
	write(t, filepath.Join(c.source(l), "go.mod"), []byte(`module example.com/build

go 1.26

tool example.com/hello

require example.com/hello v1.2.3

replace example.com/hello => ./hello
`))
	write(t, filepath.Join(c.source(l), "go.sum"), nil)
	write(t, filepath.Join(c.source(l), "hello", "go.mod"), []byte("module example.com/hello\n\ngo 1.26\n"))
	write(t, filepath.Join(c.source(l), "hello", "main.go"), []byte("package main\n\nvar version string\n\nfunc main() { print(version) }\n"))
	return c, l
}

func TestBuildOncePerSource(t *testing.T) {
	c, l := testComponent(t)
	say := newProgress(io.Discard)
	binary := filepath.Join(l.cache, "hello-v1.2.3", "hello")
	build := func() os.FileInfo {
		t.Helper()
		if err := buildComponents(t.Context(), l, say, []component{c}); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(binary)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	first := build()
	if out, err := exec.CommandContext(t.Context(), binary).CombinedOutput(); err != nil || string(out) != "v1.2.3" {
		t.Errorf("it prints %q, %v, want its version", out, err)
	}
	if !os.SameFile(first, build()) {
		t.Error("built again though nothing changed")
	}
	write(t, filepath.Join(c.source(l), "go.sum"), []byte("example.com/other v1.0.0 h1:x\n"))
	second := build()
	if os.SameFile(first, second) {
		t.Error("not built again though a dependency changed")
	}
	c.flags += " -s"
	if os.SameFile(second, build()) {
		t.Error("not built again though the flags changed")
	}
}

func TestBuildFailureLeavesNothingToUse(t *testing.T) {
	c, l := testComponent(t)
	write(t, filepath.Join(c.source(l), "hello", "main.go"), []byte("package main\n\nfunc main() { undefined() }\n"))
	err := buildComponents(t.Context(), l, newProgress(io.Discard), []component{c})
	if err == nil || !strings.Contains(err.Error(), "undefined") {
		t.Errorf("got %v, want the compiler's message", err)
	}
	if _, err := os.Stat(filepath.Join(l.cache, "hello-v1.2.3")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory is left: %v", err)
	}
}

// The pinned modules and this program must agree, or a cluster is built of something else than it says.
func TestPinnedComponents(t *testing.T) {
	l := testLayout(t)
	for _, c := range components() {
		version, err := c.version(l)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if strings.Contains(c.linkerFlags(version), "VERSION") || strings.Contains(c.linkerFlags(version), "MINOR") {
			t.Errorf("%s: flags %s", c.name, c.linkerFlags(version))
		}
		for _, name := range c.binaries {
			if want := filepath.Join(l.cache, c.name+"-"+version, name); l.binary(name) != want {
				t.Errorf("%s is at %s, want %s", name, l.binary(name), want)
			}
		}
	}
}

func TestLinkEnvtestReplacesOldLinks(t *testing.T) {
	l := testLayout(t)
	if err := os.MkdirAll(l.envtest(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/old/etcd", filepath.Join(l.envtest(), "etcd")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := linkEnvtest(l); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"kube-apiserver", "etcd", "kubectl"} {
		if at, err := os.Readlink(filepath.Join(l.envtest(), name)); err != nil || at != l.binary(name) {
			t.Errorf("%s links to %q, %v, want %s", name, at, err, l.binary(name))
		}
	}
}

func TestImagesAreReproducible(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "proxy")
	write(t, binary, []byte("one"))
	first := archiveOf(t, binary)
	write(t, binary, []byte("one")) // another modification time
	if !bytes.Equal(first, archiveOf(t, binary)) {
		t.Error("the same binary made another image")
	}
	write(t, binary, []byte("two"))
	if bytes.Equal(first, archiveOf(t, binary)) {
		t.Error("another binary made the same image")
	}
}

func TestImageRunsItsBinaryWithoutRoot(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "proxy")
	write(t, binary, []byte("content"))
	i, err := newImage("x", binary)
	if err != nil {
		t.Fatal(err)
	}
	config, err := i.data.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != "65532:65532" || strings.Join(config.Config.Entrypoint, " ") != "/proxy" || config.OS != "linux" {
		t.Errorf("got %+v", config)
	}
	layers, err := i.data.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("got %d layers, %v", len(layers), err)
	}
	reader, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	header, err := tar.NewReader(reader).Next()
	if err != nil || header.Name != "proxy" || header.FileInfo().Mode().Perm() != 0o555 {
		t.Errorf("got %+v, %v", header, err)
	}
}

func archiveOf(t *testing.T, binary string) []byte {
	t.Helper()
	i, err := newImage("x", binary)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := i.write(&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
