// SPDX-License-Identifier: Apache-2.0

// Command kubectl-idempotency is what people use beside kubectl itself, which finds it as kubectl idempotency: it compiles a policy, tries one
// without a cluster, explains a policy's status, and looks at and settles single entries.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

// streams are what a command reads and writes. Results go to out; progress and what is said beside them to err.
type streams struct {
	in  io.Reader
	out io.Writer
	err io.Writer
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Getenv, streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1) //nolint:gocritic // stop only gives signals back
	}
}

// run runs one command line.
func run(ctx context.Context, args []string, env func(string) string, s streams) error {
	root := &cobra.Command{
		Use:           "kubectl-idempotency",
		Short:         "Compile, try, explain and repair idempotency policies",
		Version:       version,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl idempotency"},
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newCompile(s), newLocal(env, s), newStatus(s), newInspect(s), newUnknown(s), newSettle(s), newPlan(s)) //nolint:contextcheck // cobra hands it to each command
	root.SetArgs(args)
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	return root.ExecuteContext(ctx)
}
