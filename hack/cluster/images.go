// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// image is one static binary and nothing else.
type image struct {
	name string // of the image, without registry and prefix
	tag  string // the whole reference
	data v1.Image
}

// imageSource says which package makes an image's binary.
type imageSource struct {
	name, module, pkg, binary string
}

// productImages are the ones that make images builds; module is relative to the repository.
var productImages = []imageSource{
	{name: "idempotency-manager", module: ".", pkg: "cmd/manager", binary: "manager"},
	{name: "idempotency-proxy", module: ".", pkg: "cmd/proxy", binary: "proxy"},
	{name: "idempotency-sampleapp", module: ".", pkg: "test/sampleapp", binary: "sampleapp"},
	{name: "client", module: "hack", pkg: "images/client", binary: "client"},
}

var pauseImage = imageSource{name: "pause", module: "hack", pkg: "images/pause", binary: "pause"}

// imageName is a reference that no registry answers to: pods must name it with imagePullPolicy Never or IfNotPresent.
func imageName(short string) string { return "docker.io/local/" + short + ":dev" }

// buildProductImages builds the named images, or all that have a source by now, and says which have not.
func buildProductImages(ctx context.Context, l layout, say *progress, names []string) ([]image, error) {
	var built []image
	for _, source := range productImages {
		if len(names) > 0 && !slices.Contains(names, source.name) {
			continue
		}
		files, err := filepath.Glob(filepath.Join(l.source, source.module, source.pkg, "*.go"))
		if err != nil {
			return nil, fmt.Errorf("find source of image %s: %w", source.name, err)
		}
		if len(files) == 0 {
			say.step("no %s: %s has no source", imageName(source.name), source.pkg)
			continue
		}
		i, err := source.build(ctx, l, say)
		if err != nil {
			return nil, err
		}
		built = append(built, i)
	}
	return built, nil
}

// buildNodeImages builds what the node itself needs.
func buildNodeImages(ctx context.Context, l layout, say *progress) ([]image, error) {
	pause, err := pauseImage.build(ctx, l, say)
	if err != nil {
		return nil, err
	}
	coredns, err := newImage("coredns", l.binary("coredns"))
	if err != nil {
		return nil, err
	}
	return []image{pause, coredns}, nil
}

func (s imageSource) build(ctx context.Context, l layout, say *progress) (image, error) {
	say.step("building %s", imageName(s.name))
	binary := filepath.Join(l.cache, "images", s.name, s.binary)
	lock, err := acquire(ctx, filepath.Join(filepath.Dir(binary), "lock"), say)
	if err != nil {
		return image{}, err
	}
	defer func() { _ = lock.Close() }()
	err = goBuild(ctx, say, filepath.Join(l.source, s.module), "-s -w -X main.version=dev", binary, "./"+s.pkg)
	if err != nil {
		return image{}, fmt.Errorf("build image %s: %w", s.name, err)
	}
	return newImage(s.name, binary)
}

// newImage makes an image from nothing. The same binary always makes the same image.
func newImage(short, binary string) (image, error) {
	content, err := os.ReadFile(binary)
	if err != nil {
		return image{}, fmt.Errorf("make image %s: %w", short, err)
	}
	layer, err := archive(filepath.Base(binary), content)
	if err != nil {
		return image{}, fmt.Errorf("make image %s: %w", short, err)
	}
	// Not compressed: it is read once, from this machine.
	data, err := mutate.AppendLayers(empty.Image, static.NewLayer(layer, types.DockerUncompressedLayer))
	if err != nil {
		return image{}, fmt.Errorf("make image %s: %w", short, err)
	}
	config, err := data.ConfigFile()
	if err != nil {
		return image{}, fmt.Errorf("make image %s: %w", short, err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{User: "65532:65532", Entrypoint: []string{"/" + filepath.Base(binary)}}
	data, err = mutate.ConfigFile(data, config)
	if err != nil {
		return image{}, fmt.Errorf("make image %s: %w", short, err)
	}
	return image{name: short, tag: imageName(short), data: data}, nil
}

// archive is a tar file with one executable, owned by root, from no particular time.
func archive(path string, content []byte) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.WriteHeader(&tar.Header{Name: path, Mode: 0o555, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func (i image) digest() (string, error) {
	digest, err := i.data.ConfigName()
	if err != nil {
		return "", fmt.Errorf("digest image %s: %w", i.name, err)
	}
	return digest.String(), nil
}

// write writes the image as an archive that docker, ctr and kind can load.
func (i image) write(w io.Writer) error {
	tag, err := name.NewTag(i.tag)
	if err != nil {
		return fmt.Errorf("write image %s: %w", i.name, err)
	}
	if err := tarball.Write(tag, i.data, w); err != nil {
		return fmt.Errorf("write image %s: %w", i.name, err)
	}
	return nil
}

// load imports the images that the node does not have yet.
func (n *node) load(ctx context.Context, images []image) error {
	for _, i := range images {
		digest, err := i.digest()
		if err != nil {
			return err
		}
		mark := n.layout.data(filepath.Join("images", i.name))
		if loaded, err := os.ReadFile(mark); err == nil && string(loaded) == digest {
			continue
		}
		n.say.step("loading %s", i.tag)
		if err := n.importImage(ctx, i); err != nil {
			return err
		}
		if err := writeFile(mark, []byte(digest), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) importImage(ctx context.Context, i image) error {
	reader, writer := io.Pipe()
	go func() { _ = writer.CloseWithError(i.write(writer)) }()
	_, err := n.ctr(ctx, reader, "images", "import", "-")
	_ = reader.CloseWithError(errors.New("import ended")) // releases the writer when ctr stopped reading early
	if err != nil {
		return fmt.Errorf("import image %s: %w", i.name, err)
	}
	return nil
}
