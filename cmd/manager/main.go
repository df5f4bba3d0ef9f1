// SPDX-License-Identifier: Apache-2.0

// Command manager is the operator: it reconciles policies, serves the webhooks and maintains partitions.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "manager:", err)
		os.Exit(1)
	}
}

// run is the program: without a subcommand the operator, until ctx ends; "retention" is one pass over one keyspace.
func run(ctx context.Context, args []string, env func(string) string, out io.Writer) error {
	if len(args) > 0 && args[0] == "retention" {
		return maintain(ctx, args[1:], out)
	}
	config, err := parse(args, env)
	if err != nil {
		return err
	}
	return operate(ctx, config, out)
}
