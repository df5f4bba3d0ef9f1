// SPDX-License-Identifier: Apache-2.0

// Command cluster runs a single-node Kubernetes on this machine, built from pinned Go modules: no Docker, no image
// registry, no downloads but modules and Debian packages. With CLUSTER=kind it drives kind instead.
//
// See docs/development.md for how to use it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

const usage = `usage: go run ./cluster COMMAND    (in hack/; or make cluster-up, cluster-status, cluster-down, images)

  up              build what is missing, start the node, wait until it is ready
  down            stop it and remove everything it made, except the cached binaries
  status          print the components and the node; exit 1 when it is not ready
  images [NAME]…  build the product's images, or those named, and load them into the node
  build           build the binaries into the cache
  kubeconfig      print the path of the kubeconfig
  kubectl         print the path of the cached kubectl
  envtest-assets  print a directory with kube-apiserver, etcd and kubectl, building it when needed

CLUSTER=kind uses kind and Docker for up, down, status and images.
`

// errUsage asks main to exit with the status that shells expect for a wrong command line.
var errUsage = errors.New("wrong usage")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	if errors.Is(err, errUsage) {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

// run executes one command. What scripts read goes to out, progress to log.
func run(ctx context.Context, args []string, env func(string) string, out, log io.Writer) error {
	if len(args) > 0 && args[0] == launchCommand {
		return launch(args[1:])
	}
	if len(args) == 0 || len(args) > 1 && args[0] != "images" {
		return errUsage
	}
	layout, err := newLayout(env)
	if err != nil {
		return err
	}
	say := newProgress(log)
	var provider provider = &node{layout: layout, say: say, stopPatience: stopPatience}
	if env("CLUSTER") == "kind" {
		provider = &kind{layout: layout, say: say}
	}
	switch args[0] {
	case "up":
		return change(ctx, provider, say, provider.up)
	case "down":
		return change(ctx, provider, say, provider.down)
	case "images":
		images, err := buildProductImages(ctx, layout, say, args[1:])
		if err != nil {
			return err
		}
		return change(ctx, provider, say, func(ctx context.Context) error { return provider.load(ctx, images) })
	case "status":
		return provider.status(ctx, out)
	case "build":
		return buildAll(ctx, layout, say)
	case "kubeconfig":
		_, err := fmt.Fprintln(out, layout.kubeconfig())
		return err
	case "kubectl":
		return printKubectl(layout, out)
	case "envtest-assets":
		return envtestAssets(ctx, layout, say, out)
	}
	return errUsage
}

// provider is a way to have a cluster.
type provider interface {
	lockFile() string // serializes changes
	up(ctx context.Context) error
	down(ctx context.Context) error
	status(ctx context.Context, out io.Writer) error
	load(ctx context.Context, images []image) error
}

// change runs something that alters the cluster, one at a time on this machine.
func change(ctx context.Context, p provider, say *progress, action func(context.Context) error) error {
	lock, err := acquire(ctx, p.lockFile(), say)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if n, ok := p.(*node); ok {
		n.lock = lock
	}
	return action(ctx)
}

func printKubectl(layout layout, out io.Writer) error {
	path := layout.binary("kubectl")
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("find kubectl: %w", err)
	}
	_, err := fmt.Fprintln(out, path)
	return err
}
