// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// kindCluster is the name of the cluster that kind makes.
const kindCluster = "idempotency"

// kind is a cluster made by kind, for machines that have Docker.
type kind struct {
	layout layout
	say    *progress
}

func (k *kind) lockFile() string { return filepath.Join(filepath.Dir(k.layout.state), "lock") }

func (k *kind) up(ctx context.Context) error {
	clusters, err := command(ctx, nil, "kind", "get", "clusters")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(k.layout.state, 0o755); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	if slices.Contains(strings.Fields(clusters), kindCluster) {
		_, err = command(ctx, nil, "kind", "export", "kubeconfig", "--name", kindCluster, "--kubeconfig", k.layout.kubeconfig())
	} else {
		k.say.step("creating a cluster with kind (the first time it downloads a node image)")
		_, err = command(ctx, nil, "kind", "create", "cluster", "--name", kindCluster, "--kubeconfig", k.layout.kubeconfig(), "--wait", "3m")
	}
	if err != nil {
		return err
	}
	k.say.step("ready: export KUBECONFIG=%s", k.layout.kubeconfig())
	return nil
}

func (k *kind) down(ctx context.Context) error {
	_, err := command(ctx, nil, "kind", "delete", "cluster", "--name", kindCluster, "--kubeconfig", k.layout.kubeconfig())
	if err != nil {
		return err
	}
	k.say.step("the cluster is down")
	return nil
}

func (k *kind) status(ctx context.Context, out io.Writer) error {
	kubectl := func(args ...string) (string, error) {
		return command(ctx, nil, "kubectl", append([]string{"--kubeconfig", k.layout.kubeconfig()}, args...)...)
	}
	nodes, err := kubectl("get", "nodes", "-o", "wide")
	if err != nil {
		return err
	}
	pods, err := kubectl("get", "pods", "-A")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n\n%s\n\nexport KUBECONFIG=%s\n", nodes, pods, k.layout.kubeconfig())
	_, err = kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=1s")
	return err
}

// load gives kind the same archives that the local node gets: no Docker build, no difference.
func (k *kind) load(ctx context.Context, images []image) error {
	for _, i := range images {
		k.say.step("loading %s", i.tag)
		path := filepath.Join(k.layout.cache, "images", i.name, "image.tar")
		if err := i.save(path); err != nil {
			return err
		}
		if _, err := command(ctx, nil, "kind", "load", "image-archive", path, "--name", kindCluster); err != nil {
			return err
		}
	}
	return nil
}

func (i image) save(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("save image %s: %w", i.name, err)
	}
	defer func() { _ = file.Close() }()
	if err := i.write(file); err != nil {
		return err
	}
	return file.Close()
}
