// SPDX-License-Identifier: Apache-2.0

// Package inbox gives the consumer of a message queue exactly one effect per message: the delivery is recorded in the transaction of the effect, in
// PostgreSQL, where an IdempotencyPolicy declares the consumer. It works with pgx and database/sql, and depends on neither.
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		_, err := inbox.Once(ctx, tx.QueryRow, billing, message.ID, func() error { return charge(ctx, tx, message) })
//		return err
//	})
//	// acknowledge if err is nil
//
// With database/sql pass tx.QueryRowContext. What that guarantees, what to use as the message's id, and when to acknowledge is in docs/consumers.md.
package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Consumer is who takes messages. Several processes may be one consumer: each message has one effect among them.
type Consumer struct {
	// Keyspace is that of the policy: its spec.keyspace, or else <namespace>.<name>.
	Keyspace string
	// Name is one of its spec.consumers.
	Name string
	// Schema is the policy's spec.store.postgres.schema; empty: idempotency.
	Schema string
}

// Row is a pgx.Row or a *sql.Row.
type Row interface{ Scan(dest ...any) error }

// Once runs effect unless the message has been taken already, and says whether it did. query is the method of a transaction that effect uses, too: QueryRow of
// a pgx.Tx, QueryRowContext of a *sql.Tx. messageID is what the sender made unique, 1 to 1024 bytes.
//
// Another delivery of the message that is under way is waited for. After an error the transaction has to be rolled back; Retryable says whether to run it
// again. After the transaction's commit, and not before, the message may be acknowledged, whether or not it was the first.
func Once[R Row](ctx context.Context, query func(ctx context.Context, sql string, args ...any) R, c Consumer, messageID string, effect func() error) (first bool, err error) {
	schema := c.Schema
	if schema == "" {
		schema = "idempotency"
	}
	sql := `SELECT "` + strings.ReplaceAll(schema, `"`, `""`) + `".first_delivery($1, $2, $3)`
	if err := query(ctx, sql, c.Keyspace, c.Name, messageID).Scan(&first); err != nil {
		return false, fmt.Errorf("record delivery to consumer %s: %w", c.Name, err)
	}
	if !first {
		return false, nil
	}
	return true, effect()
}

// Retryable says whether the transaction that failed with err did so because of others, and may succeed when it is run again, from its beginning: a
// serialization failure, a deadlock, a lock that was not to be had in time, or a partition that was just being retired.
// It knows the errors of pgx and lib/pq.
func Retryable(err error) bool {
	var server interface{ SQLState() string }
	return errors.As(err, &server) && slices.Contains([]string{"40001", "40P01", "55P03", "55000"}, server.SQLState())
}
