// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// call runs one statement as one transaction in one round trip, and scans its row into dest (none: there is nothing to know).
//
// It tries again when an attempt certainly changed nothing and another may fare better, and when a connection is lost: every statement that is
// called here may be repeated, and connections of a server that has restarted or been replaced all break at their first use. repeated
// says that an earlier attempt may have taken effect.
func (s *Store) call(ctx context.Context, sql string, args []any, dest ...any) (repeated bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	for range s.pool.Config().MaxConns + 1 {
		if err = s.attempt(ctx, sql, args, dest); err == nil || ctx.Err() != nil {
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
	switch code := codeOf(err); code {
	case "":
		var connect *pgconn.ConnectError
		return !errors.As(err, &connect), !pgconn.SafeToRetry(err)
	case "57P01", "57P02": // the server ends our connection, perhaps while a commit waits for its standby
		return true, true
	case unknownStatement, duplicateStatement:
		// Only a new connection prepares in another way.
		again = s.pooler.CompareAndSwap(false, true)
		s.pool.Reset()
		return again || code == unknownStatement, false
	case wrongIsolation:
		return s.explicit.CompareAndSwap(false, true) || s.explicit.Load(), false
	case "25006": // read-only: it is not the primary any more
		s.pool.Reset()
		return false, false
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
	if !s.explicit.Load() {
		return scan(conn.QueryRow(ctx, sql, args...), dest)
	}
	// Three messages, one round trip.
	batch := &pgx.Batch{}
	batch.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	batch.Queue(sql, args...)
	batch.Queue("COMMIT")
	results := conn.SendBatch(ctx, batch)
	_, err = results.Exec()
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
