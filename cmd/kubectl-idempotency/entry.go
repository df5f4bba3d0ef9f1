// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/proxy"
)

// entryFlags name one entry of a target.
type entryFlags struct {
	target
	client string
}

func (f *entryFlags) bind(cmd *cobra.Command) {
	f.target.bind(cmd)
	cmd.Flags().StringVarP(&f.client, "client", "c", "", "client of the entry, as the command unknown prints it; not needed with client.shared")
}

// find opens the database and returns the entry of key in it. The caller closes the database, which is nil on an error.
func (f *entryFlags) find(ctx context.Context, in io.Reader, key string) (*database, postgres.Entry, error) {
	db, err := f.open(ctx, in)
	if err != nil {
		return nil, postgres.Entry{}, err
	}
	entry, err := db.entry(ctx, f.client, key)
	if err != nil {
		db.admin.Close()
		return nil, postgres.Entry{}, err
	}
	return db, entry, nil
}

func (db *database) entry(ctx context.Context, client, key string) (postgres.Entry, error) {
	if client == "" {
		if db.policy.Spec.Client.Shared == nil {
			return postgres.Entry{}, errors.New("entries belong to clients: --client is needed")
		}
		client = proxy.SharedClient
	}
	entry, err := db.admin.Inspect(ctx, db.keyspace, client, key)
	if errors.Is(err, postgres.ErrNoEntry) {
		return entry, fmt.Errorf("client %q has no entry %q in keyspace %s, or its window is over", client, key, db.keyspace)
	}
	if err != nil {
		return entry, fmt.Errorf("inspect entry: %w", err)
	}
	return entry, nil
}

func newInspect(s streams) *cobra.Command {
	var flags entryFlags
	var body bool
	cmd := &cobra.Command{
		Use:     "inspect KEY --policy NAME --client CLIENT",
		Short:   "Show the entry of a key",
		Example: "  kubectl idempotency inspect order-17 --policy payments --client alice",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			db, entry, err := flags.find(cmd.Context(), s.in, args[0])
			if err != nil {
				return err
			}
			defer db.admin.Close()
			if body {
				return writeBody(s.out, entry)
			}
			return writeEntry(s.out, db.keyspace, entry)
		},
	}
	flags.bind(cmd)
	cmd.Flags().BoolVar(&body, "body", false, "write the recorded body and nothing else, byte for byte")
	return cmd
}

func writeBody(out io.Writer, e postgres.Entry) error {
	if e.Answer == nil || e.Answer.Tombstone != "" {
		return fmt.Errorf("no body can be shown: the entry is %s", describeState(e))
	}
	if _, err := out.Write(e.Answer.Body); err != nil {
		return fmt.Errorf("write body: %w", err)
	}
	return nil
}

func writeEntry(out io.Writer, keyspace string, e postgres.Entry) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name string, value any) { fmt.Fprintf(table, "%s:\t%v\n", name, value) }
	line("Keyspace", keyspace)
	line("Client", e.Client)
	line("Key", e.Key)
	line("State", describeState(e))
	line("Route", e.Route)
	line("Attempts", e.Attempts)
	line("Reserved at", e.ReservedAt.Format(time.RFC3339))
	line("Honoured until", e.ExpiresAt.Format(time.RFC3339))
	line("Partition", e.Bucket.Format(time.DateOnly))
	line("Holder", e.Holder)
	if answer := e.Answer; answer != nil {
		line("Status", answer.Status)
		for _, name := range slices.Sorted(maps.Keys(answer.Header)) {
			for _, value := range answer.Header[name] {
				line("Header", name+": "+value)
			}
		}
		line("Body", fmt.Sprintf("%d bytes", len(answer.Body)))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write entry: %w", err)
	}
	return nil
}

// describeState is the state and what follows from it.
func describeState(e postgres.Entry) string {
	switch {
	case e.State == postgres.StateReserved:
		return "Reserved: a live sidecar is executing it"
	case e.State == postgres.StateUnknown:
		return "Unknown: it may or may not have taken effect; settle it"
	case e.Answer != nil && e.Answer.Tombstone == keystore.Sealed:
		return "Completed: retries get the recorded answer, which is encrypted"
	case e.Answer != nil && e.Answer.Tombstone == keystore.Referenced:
		return "Completed: retries get the body from the service, at Location"
	case e.Answer != nil && e.Answer.Tombstone != "":
		return fmt.Sprintf("Completed: it took effect, and its answer was not kept (%s)", e.Answer.Tombstone)
	default:
		return "Completed: retries get the recorded answer"
	}
}

func newUnknown(s streams) *cobra.Command {
	var t target
	var limit int
	cmd := &cobra.Command{
		Use:   "unknown --policy NAME",
		Short: "List the entries whose outcome nobody knows, the oldest first",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 {
				return fmt.Errorf("--limit %d is not positive", limit)
			}
			db, err := t.open(cmd.Context(), s.in)
			if err != nil {
				return err
			}
			defer db.admin.Close()
			entries, err := db.admin.Unknown(cmd.Context(), db.keyspace, limit)
			if err != nil {
				return fmt.Errorf("list unknown entries: %w", err)
			}
			if len(entries) == 0 {
				fmt.Fprintln(s.err, "No outcome is unknown.")
				return nil
			}
			if len(entries) == limit {
				fmt.Fprintf(s.err, "These are the first %d; there may be more.\n", limit)
			}
			return writeUnknown(s.out, entries)
		},
	}
	t.bind(cmd)
	cmd.Flags().IntVar(&limit, "limit", 100, "how many entries to list")
	return cmd
}

func writeUnknown(out io.Writer, entries []postgres.Entry) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "CLIENT\tKEY\tROUTE\tATTEMPTS\tRESERVED\tHONOURED UNTIL")
	for _, e := range entries {
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t%s\n", e.Client, e.Key, e.Route, e.Attempts, e.ReservedAt.Format(time.RFC3339), e.ExpiresAt.Format(time.RFC3339))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}
