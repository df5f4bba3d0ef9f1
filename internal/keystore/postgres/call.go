// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// begin says the isolation level that the functions ask for.
const begin = "BEGIN ISOLATION LEVEL READ COMMITTED"

// fixed are arguments that are the same in every attempt.
func fixed(args ...any) func(bool) []any { return func(bool) []any { return args } }

// errLocked: whether an earlier attempt has taken effect shows when the entry's lock is free again.
var errLocked = errors.New("entry is locked")

// call runs one statement as one transaction in one round trip, and scans its row into dest (none: there is nothing to know).
//
// It tries again when an attempt certainly changed nothing and another may fare better, and when a connection is lost: every statement that is
// called here may be repeated, and connections of a server that has restarted or been replaced all break at their first use. repeated
// says that an earlier attempt may have taken effect.
func (s *Store) call(ctx context.Context, sql string, args func(repeated bool) []any, dest ...any) (repeated bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	for range s.attempts {
		if err = s.attempt(ctx, sql, args(repeated), dest); err == nil || ctx.Err() != nil {
			return repeated, err
		}
		again, uncertain := s.judge(err)
		repeated = repeated || uncertain
		if !again {
			return repeated, err
		}
	}
	return repeated, err
}

// judge says whether to try again after err, and whether the failed attempt may have taken effect.
func (s *Store) judge(err error) (again, uncertain bool) {
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) {
		return false, false
	}
	if isFatal(err) { // the server, or a pooler, has ended our connection: while it was idle, or perhaps while a commit waits for its standby
		return true, true
	}
	switch codeOf(err) {
	case "":
		return true, !pgconn.SafeToRetry(err)
	case unknownStatement, duplicateStatement:
		s.pooler.Store(true)
		return true, false
	case wrongIsolation:
		s.explicit.Store(true)
		return true, false
	case "40001", "40P01", "55000", "0A000": // serialization failure, deadlock, partition being retired, plan of an older function
		return true, false
	}
	return false, false
}

func (s *Store) attempt(ctx context.Context, sql string, args []any, dest []any) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if s.explicit.Load() {
		err = explicitly(ctx, conn, sql, args, dest)
	} else {
		err = scan(conn.QueryRow(ctx, sql, args...), dest)
	}
	s.condemn(ctx, conn, err)
	return err
}

// condemn closes a connection that will not do better: it was made before we knew of the pooler, or leads to what is not the primary any more.
func (s *Store) condemn(ctx context.Context, conn *pgxpool.Conn, err error) {
	switch codeOf(err) {
	case unknownStatement, duplicateStatement, readOnly:
		_ = conn.Conn().Close(ctx)
	}
}

// explicitly runs the statement in a transaction that says its isolation level: three messages, one round trip.
func explicitly(ctx context.Context, conn *pgxpool.Conn, sql string, args []any, dest []any) error {
	batch := &pgx.Batch{}
	batch.Queue(begin)
	batch.Queue(sql, args...)
	batch.Queue("COMMIT")
	results := conn.SendBatch(ctx, batch)
	_, err := results.Exec()
	if err == nil {
		err = scan(results.QueryRow(), dest)
	}
	if err == nil {
		_, err = results.Exec()
	}
	closed := results.Close()
	if err == nil {
		err = closed
	}
	return err
}

func scan(row pgx.Row, dest []any) error {
	if len(dest) == 0 || dest[0] == nil {
		dest = []any{nil}
	}
	return row.Scan(dest...)
}
