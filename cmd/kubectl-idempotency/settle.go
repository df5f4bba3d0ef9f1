// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/net/http/httpguts"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/policy"
)

// verdict is what the user says of an entry.
type verdict struct {
	release  bool
	status   int
	headers  []string
	bodyFile string
}

func newSettle(s streams) *cobra.Command {
	var flags entryFlags
	var v verdict
	cmd := &cobra.Command{
		Use:   "settle KEY --policy NAME --client CLIENT (--release | --status CODE)",
		Short: "Decide an entry whose outcome nobody knows",
		Long: `Decide an entry whose outcome nobody knows. Look at the app first: --release makes the next retry execute, and executes a second time what
has happened already; --status makes every retry get the answer that is given here, and never executes what has not happened.`,
		Example: `  kubectl idempotency settle order-17 --policy payments --client alice --release
  kubectl idempotency settle order-17 --policy payments --client alice --status 201 --header 'Location: /payments/17' --body-file answer.json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			answer, err := v.answer()
			if err != nil {
				return err
			}
			db, entry, err := flags.find(cmd.Context(), s.in, args[0])
			if err != nil {
				return err
			}
			defer db.admin.Close()
			if err := db.settle(cmd.Context(), entry, answer); err != nil {
				return err
			}
			if answer == nil {
				fmt.Fprintln(s.err, "Released: the next retry executes.")
			} else {
				fmt.Fprintf(s.err, "Completed: retries get %d %s.\n", answer.Status, http.StatusText(answer.Status))
			}
			return nil
		},
	}
	flags.bind(cmd)
	cmd.Flags().BoolVar(&v.release, "release", false, "it had no effect: the next retry executes")
	cmd.Flags().IntVar(&v.status, "status", 0, "it took effect: retries get this status code")
	cmd.Flags().StringArrayVar(&v.headers, "header", nil, "header field of that answer, 'Name: value'; may be repeated")
	cmd.Flags().StringVar(&v.bodyFile, "body-file", "", "file with the body of that answer")
	cmd.MarkFlagsOneRequired("release", "status")
	cmd.MarkFlagsMutuallyExclusive("release", "status")
	cmd.MarkFlagsMutuallyExclusive("release", "header")
	cmd.MarkFlagsMutuallyExclusive("release", "body-file")
	return cmd
}

// answer is what retries get; nil when they are to execute.
func (v *verdict) answer() (*keystore.Answer, error) {
	if v.release {
		return nil, nil //nolint:nilnil // nil is the answer of a release
	}
	if v.status < http.StatusOK || v.status > 599 {
		return nil, fmt.Errorf("--status %d is not a final status code, 200 to 599", v.status)
	}
	answer := &keystore.Answer{Status: v.status, Header: http.Header{}}
	for _, field := range v.headers {
		name, value, found := strings.Cut(field, ":")
		value = strings.TrimSpace(value)
		if !found || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return nil, fmt.Errorf("--header %q is not of the form 'Name: value'", field)
		}
		if reason := policy.UnfitForReplay(http.CanonicalHeaderKey(name)); reason != "" {
			return nil, fmt.Errorf("--header %s: %s", name, reason)
		}
		answer.Header.Add(name, value)
	}
	if v.bodyFile == "" {
		return answer, nil
	}
	if v.status == http.StatusNoContent || v.status == http.StatusNotModified {
		return nil, errors.New("an answer with this status has no body: remove --body-file")
	}
	body, err := os.ReadFile(v.bodyFile)
	if err != nil {
		return nil, fmt.Errorf("read body: %w", err)
	}
	answer.Body = body
	return answer, nil
}

// settle decides entry, which must be as it was read: its token says so. Only an unknown outcome can be decided.
func (db *database) settle(ctx context.Context, entry postgres.Entry, answer *keystore.Answer) error {
	if entry.State != postgres.StateUnknown {
		return fmt.Errorf("only an unknown outcome can be settled, and the entry is %s", describeState(entry))
	}
	owner := keystore.Ownership{Client: entry.Client, Key: entry.Key, Token: entry.Token}
	err := db.admin.Settle(ctx, db.keyspace, owner, answer)
	if errors.Is(err, postgres.ErrNotUnknown) {
		return errors.New("the entry has changed since it was read: look at it again")
	}
	return err
}
