// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/idempotency-dev/operator/internal/retention"
)

func newPlan(s streams) *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:   "plan --policy NAME",
		Short: "Show what retention would do next, and change nothing",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			db, err := t.open(cmd.Context(), s.in)
			if err != nil {
				return err
			}
			defer db.admin.Close()
			settings := retention.Settings{CreateAhead: int(db.policy.Spec.Retention.CreateAhead)}
			state, plan, err := retention.Preview(cmd.Context(), db.admin.Catalogue(db.keyspace), settings, retention.SystemClock{})
			if err != nil {
				return fmt.Errorf("plan partitions of %s: %w", db.keyspace, err)
			}
			return writePlan(s.out, s.err, state, plan)
		},
	}
	t.bind(cmd)
	return cmd
}

func writePlan(out, err io.Writer, state retention.State, plan retention.Plan) error {
	for _, problem := range plan.Problems {
		fmt.Fprintf(err, "%s: %s %s\n", problem.Reason, problem.Relation, problem.Message)
	}
	if len(plan.Steps) == 0 {
		fmt.Fprintf(err, "Nothing to do: %d partitions.\n", len(state.Partitions))
		return nil
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ACTION\tPARTITION\tDAY\tBECAUSE")
	for _, step := range plan.Steps {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", step.Action, step.Partition.Relation, step.Partition.From.Format(time.DateOnly), step.Reason)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}
