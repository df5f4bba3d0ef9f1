// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/retention"
)

// maintenance is the configuration of one pass over one keyspace, without Kubernetes.
type maintenance struct {
	// DSNFile holds the connection string of a role that owns the schema.
	DSNFile string
	// Schema of the tables; empty: idempotency.
	Schema string
	// Keyspace that is maintained.
	Keyspace string
	// CreateAhead is how many daily partitions exist beyond today's.
	CreateAhead int
	// DryRun shows the plan and changes nothing.
	DryRun bool
	// Timeout bounds the whole pass.
	Timeout time.Duration
}

func parseMaintenance(args []string) (maintenance, error) {
	var m maintenance
	flags := flag.NewFlagSet("manager retention", flag.ContinueOnError)
	flags.StringVar(&m.DSNFile, "dsn-file", "", "file that holds the connection string of the role that owns the schema")
	flags.StringVar(&m.Schema, "schema", "", "schema of the tables; default: idempotency")
	flags.StringVar(&m.Keyspace, "keyspace", "", "keyspace to maintain")
	flags.IntVar(&m.CreateAhead, "create-ahead", 7, "daily partitions beyond today's, from 1 to 60")
	flags.BoolVar(&m.DryRun, "dry-run", false, "show what would be done, and change nothing")
	flags.DurationVar(&m.Timeout, "timeout", 10*time.Minute, "bound on the whole pass")
	if err := flags.Parse(args); err != nil {
		return m, err
	}
	switch {
	case flags.NArg() > 0:
		return m, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case m.DSNFile == "":
		return m, errors.New("a connection string is needed: set --dsn-file")
	case m.Keyspace == "":
		return m, errors.New("a keyspace is needed: set --keyspace")
	case m.CreateAhead < 1 || m.CreateAhead > 60:
		return m, fmt.Errorf("--create-ahead %d is not between 1 and 60", m.CreateAhead)
	case m.Timeout <= 0:
		return m, fmt.Errorf("--timeout %s is not positive", m.Timeout)
	}
	return m, nil
}

// maintain does one pass and prints the plan that it begins with, as a table, and what came of it. It makes no keyspace.
func maintain(ctx context.Context, args []string, out io.Writer) error {
	m, err := parseMaintenance(args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, m.Timeout)
	defer cancel()
	dsn, err := os.ReadFile(m.DSNFile)
	if err != nil {
		return fmt.Errorf("read connection string: %w", err)
	}
	admin, err := postgres.OpenAdmin(ctx, strings.TrimSpace(string(dsn)), m.Schema)
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	defer admin.Close()
	catalogue, settings := admin.Catalogue(m.Keyspace), retention.Settings{CreateAhead: m.CreateAhead}
	_, plan, err := retention.Preview(ctx, catalogue, settings, retention.SystemClock{})
	if err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	if err := printPlan(out, plan); err != nil || m.DryRun {
		return err
	}
	report, err := retention.Run(ctx, catalogue, settings, retention.SystemClock{})
	if err != nil {
		return fmt.Errorf("maintain keyspace %s: %w", m.Keyspace, err)
	}
	return printReport(out, report)
}

func printPlan(out io.Writer, plan retention.Plan) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ACTION\tTABLE\tFROM\tTO\tROWS\tBYTES\tREASON")
	for _, step := range plan.Steps {
		p := step.Partition
		rows, bytes := "-", "-"
		if p.Bytes > 0 {
			rows, bytes = fmt.Sprint(max(p.Rows, 0)), fmt.Sprint(p.Bytes)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", step.Action, p.Relation, p.From.UTC().Format(time.RFC3339), p.To.UTC().Format(time.RFC3339), rows, bytes, step.Reason)
	}
	if len(plan.Steps) == 0 {
		fmt.Fprintln(table, "-\t-\t-\t-\t-\t-\tnothing to do")
	}
	return table.Flush()
}

// printReport says what was done, and fails when something is left that a person should look at.
func printReport(out io.Writer, report retention.Report) error {
	fmt.Fprintf(out, "\n%d created, %d dropped; %d partitions, without a gap until %s\n",
		len(report.Created), len(report.Dropped), report.Count, report.RunwayUntil.UTC().Format(time.RFC3339))
	if report.Abandoned > 0 {
		fmt.Fprintf(out, "%d entries without a known outcome went with their partitions: their window was over\n", report.Abandoned)
	}
	if report.Ready() {
		return nil
	}
	for _, problem := range report.Problems {
		fmt.Fprintf(out, "%s %s: %s\n", problem.Reason, problem.Relation, problem.Message)
	}
	return fmt.Errorf("%d problems are left", len(report.Problems))
}
