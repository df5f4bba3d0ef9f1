// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"

	"github.com/idempotency-dev/operator/internal/redirect"
)

// redirectPorts is the subcommand redirect: it writes the rules that lead a pod's traffic to the sidecar, and ends. The operator runs it as an
// init container. Run twice, it changes nothing more.
func redirectPorts(args []string, out io.Writer) error {
	var ports redirect.Ports
	flags := flag.NewFlagSet("proxy redirect", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.IntVar(&ports.App, "app", 0, "`port` of the app, whose traffic from outside is led to the sidecar (required)")
	flags.IntVar(&ports.Sidecar, "sidecar", 0, "`port` of the sidecar (required)")
	flags.IntVar(&ports.Probes, "probes", 0, "`port` from which probes are led to the app (required)")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("parse arguments: unexpected %q", flags.Arg(0))
	}
	if err := redirect.Apply(ports); err != nil {
		return fmt.Errorf("redirect port %d: %w", ports.App, err)
	}
	slog.New(slog.NewJSONHandler(out, nil)).Info("ports redirected", "app", ports.App, "sidecar", ports.Sidecar, "probes", ports.Probes)
	return nil
}
