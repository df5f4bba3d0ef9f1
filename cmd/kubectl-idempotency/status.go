// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/policy"
)

func newStatus(s streams) *cobra.Command {
	var c cluster
	var everywhere bool
	cmd := &cobra.Command{
		Use:   "status [NAME]",
		Short: "Show what policies do, and what keeps those that are not Ready",
		Long: `Show what policies do: one line each, and below it the conditions that are not True, with their reasons and what to change.
With NAME, all conditions of that policy.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, namespace, err := c.connect()
			if err != nil {
				return err
			}
			if len(args) == 1 {
				p, err := getPolicy(cmd.Context(), api, namespace, args[0])
				if err != nil {
					return err
				}
				return writeStatus(s.out, []v1alpha1.IdempotencyPolicy{*p}, true)
			}
			var in []client.ListOption
			if !everywhere {
				in = append(in, client.InNamespace(namespace))
			}
			var list v1alpha1.IdempotencyPolicyList
			if err := api.List(cmd.Context(), &list, in...); err != nil {
				return fmt.Errorf("list policies: %w", explain(err))
			}
			if len(list.Items) == 0 {
				fmt.Fprintln(s.err, "No policies found.")
				return nil
			}
			return writeStatus(s.out, list.Items, false)
		},
	}
	c.bind(cmd)
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "policies of every namespace")
	return cmd
}

func getPolicy(ctx context.Context, api client.Client, namespace, name string) (*v1alpha1.IdempotencyPolicy, error) {
	var p v1alpha1.IdempotencyPolicy
	if err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &p); err != nil {
		return nil, fmt.Errorf("get policy %s/%s: %w", namespace, name, explain(err))
	}
	return &p, nil
}

// writeStatus writes a table with a line for each policy, and below it their conditions: those that are not True, or all.
func writeStatus(out io.Writer, policies []v1alpha1.IdempotencyPolicy, all bool) error {
	slices.SortFunc(policies, func(a, b v1alpha1.IdempotencyPolicy) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAMESPACE\tNAME\tREADY\tMODE\tSTORE\tKEYSPACE\tWINDOW\tPARTITIONS\tRUNWAY\tPODS")
	for _, p := range policies {
		writePolicy(table, p)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	for _, p := range policies {
		if err := writeConditions(out, p, all); err != nil {
			return err
		}
	}
	return nil
}

// none stands for what is not known.
const none = "-"

func writePolicy(table io.Writer, p v1alpha1.IdempotencyPolicy) {
	ready, store, partitions, runway, pods := "Unknown", none, none, none, none
	if c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady); c != nil {
		ready = string(c.Status)
	}
	if s := p.Status.Store; s != nil {
		store = strings.TrimSpace(s.Type + " " + s.Version)
	}
	if s := p.Status.Partitions; s != nil {
		partitions = fmt.Sprint(s.Count)
		if s.RunwayUntil != nil {
			runway = s.RunwayUntil.UTC().Format(time.RFC3339)
		}
	}
	if s := p.Status.Pods; s != nil {
		pods = s.Summary
		if s.Outdated > 0 {
			pods += fmt.Sprintf(", %d outdated", s.Outdated)
		}
		if s.Unsupported > 0 {
			pods += fmt.Sprintf(", %d unsupported", s.Unsupported)
		}
	}
	fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Namespace, p.Name, ready, p.Spec.Mode, store,
		policy.Keyspace(&p), p.Spec.Retention.Window, partitions, runway, pods)
}

func writeConditions(out io.Writer, p v1alpha1.IdempotencyPolicy, all bool) error {
	shown := slices.DeleteFunc(slices.Clone(p.Status.Conditions), func(c metav1.Condition) bool {
		return !all && !concerns(c)
	})
	stale := p.Status.ObservedGeneration != p.Generation
	if len(shown) == 0 && !stale {
		return nil
	}
	fmt.Fprintf(out, "\n%s/%s", p.Namespace, p.Name)
	if stale {
		fmt.Fprintf(out, ": the operator has seen generation %d, not yet %d", p.Status.ObservedGeneration, p.Generation)
	}
	fmt.Fprintln(out)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, c := range shown {
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\n", c.Type, c.Status, c.Reason, c.Message)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// concerns reports whether a condition asks for attention: one of kstatus when it is true, any other when it is not.
func concerns(c metav1.Condition) bool {
	kstatus := c.Type == v1alpha1.ConditionReconciling || c.Type == v1alpha1.ConditionStalled
	return kstatus == (c.Status == metav1.ConditionTrue)
}
