// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-dev/operator/internal/keystore"
)

var (
	// ErrNoEntry: there is no such entry, or it is not honoured any more.
	ErrNoEntry = errors.New("no such entry")
	// ErrNotUnknown: the entry's outcome is not unknown, or somebody has changed it since it was inspected.
	ErrNotUnknown = errors.New("outcome of entry is not unknown")
)

// State of an entry as an administrator sees it.
type State string

// The states of an entry.
const (
	StateReserved  State = "Reserved"
	StateCompleted State = "Completed"
	StateUnknown   State = "Unknown"
)

// Entry is what is recorded of one (client, key).
type Entry struct {
	Client string
	Key    string
	State  State
	Route  string
	// Attempts is 1, and one more for each take-over.
	Attempts int
	Token    keystore.Token
	Holder   keystore.Holder
	// Bucket is the start of the UTC day of the partition that holds the entry.
	Bucket     time.Time
	ReservedAt time.Time
	ExpiresAt  time.Time
	// Answer is set when State is StateCompleted.
	Answer *keystore.Answer
}

// Inspect returns the entry of (client, key) in keyspace. It fails with ErrNoEntry.
func (a *Admin) Inspect(ctx context.Context, keyspace, client, key string) (Entry, error) {
	entries, err := a.entries(ctx, inKeyspace(a.schema, keyspace).query("inspect"), client, key)
	if err != nil {
		return Entry{}, err
	}
	if len(entries) == 0 {
		return Entry{}, ErrNoEntry
	}
	return entries[0], nil
}

// Unknown returns at most limit entries of keyspace whose outcome is unknown, the oldest first.
func (a *Admin) Unknown(ctx context.Context, keyspace string, limit int) ([]Entry, error) {
	return a.entries(ctx, inKeyspace(a.schema, keyspace).query("unknown"), limit)
}

// Settle ends the unknown outcome of an entry that Inspect or Unknown returned: with the answer that its retries get from now on, or, without
// one, by making the entry absent, so that a retry executes. It fails with ErrNotUnknown.
func (a *Admin) Settle(ctx context.Context, keyspace string, o keystore.Ownership, answer *keystore.Answer) error {
	args := []any{o.Client, o.Key, [16]byte(o.Token), false, nil, nil, nil, nil}
	if answer != nil {
		header, err := encodeHeader(answer.Header)
		if err != nil {
			return err
		}
		args = append(args[:3], true, nil, answer.Status, header, answer.Body)
		if answer.Tombstone != "" {
			args[4] = string(answer.Tombstone)
		}
	}
	var settled bool
	err := pgx.BeginTxFunc(ctx, a.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, inKeyspace(a.schema, keyspace).query("settle"), args...).Scan(&settled)
	})
	if err != nil {
		return a.wrap(ctx, "settle entry", err)
	}
	if !settled {
		return ErrNotUnknown
	}
	return nil
}

func (a *Admin) entries(ctx context.Context, sql string, args ...any) ([]Entry, error) {
	rows, err := a.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, a.wrap(ctx, "read entries", err)
	}
	entries, err := pgx.CollectRows(rows, scanEntry)
	if err != nil {
		return nil, a.wrap(ctx, "read entries", err)
	}
	return entries, nil
}

func scanEntry(row pgx.CollectableRow) (Entry, error) {
	var e Entry
	var d decision
	var token, holder [16]byte
	var state int
	var alive bool
	err := row.Scan(&e.Client, &e.Key, &state, &e.Route, &e.Attempts, &token, &holder, &e.Bucket, &e.ReservedAt, &e.ExpiresAt,
		&alive, &d.tombstone, &d.status, &d.header, &d.body)
	if err != nil {
		return Entry{}, err
	}
	e.Token, e.Holder = keystore.Token(token), keystore.Holder(holder)
	e.Bucket, e.ReservedAt, e.ExpiresAt = e.Bucket.UTC(), e.ReservedAt.UTC(), e.ExpiresAt.UTC()
	switch {
	case state == completed:
		e.State, d.outcome = StateCompleted, keystore.Completed
		decoded, err := d.decode()
		if err != nil {
			return Entry{}, fmt.Errorf("read answer: %w", err)
		}
		e.Answer = decoded.Answer
	case state == reserved && alive:
		e.State = StateReserved
	default:
		e.State = StateUnknown
	}
	return e, nil
}
