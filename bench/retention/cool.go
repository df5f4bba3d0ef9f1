// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"
)

// files are those of a table, its values out of line and its indexes.
func (b *bench) files(ctx context.Context, table string) ([]string, error) {
	rows, err := b.pool.Query(ctx, `SELECT pg_relation_filepath(c.oid) FROM pg_class c
		WHERE c.oid = $1::regclass OR c.oid = (SELECT reltoastrelid FROM pg_class WHERE oid = $1::regclass)
		OR c.oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = $1::regclass)`, "idempotency."+table)
	if err != nil {
		return nil, err
	}
	paths, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	var data string
	if err := b.pool.QueryRow(ctx, "SHOW data_directory").Scan(&data); err != nil {
		return nil, err
	}
	var files []string
	for _, path := range paths {
		segments, err := filepath.Glob(filepath.Join(data, path) + "*")
		if err != nil {
			return nil, err
		}
		files = append(files, segments...)
	}
	return files, nil
}

// cool makes the operating system forget what it keeps in memory of a table's files: a day is retired long after it was written.
func (b *bench) cool(ctx context.Context, table string) error {
	files, err := b.files(ctx, table)
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := forget(file); err != nil {
			return err
		}
	}
	return nil
}

func forget(path string) error {
	file, err := os.Open(path) //nolint:gosec // the benchmark's own server names it
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED), file.Close())
}

// removal is what the file system takes to remove plain files as large as a table's: what no retirement can do without.
func (b *bench) removal(ctx context.Context, table string) (took time.Duration, err error) {
	files, err := b.files(ctx, table)
	if err != nil {
		return 0, err
	}
	var copies []string
	defer func() {
		for _, copied := range copies {
			err = errors.Join(err, os.Remove(copied))
		}
	}()
	for _, path := range files {
		copied := filepath.Join(filepath.Dir(filepath.Dir(path)), "bench-"+filepath.Base(path))
		copies = append(copies, copied)
		if err := errors.Join(copyFile(path, copied), forget(copied)); err != nil {
			return 0, err
		}
	}
	start := time.Now()
	for len(copies) > 0 {
		if err := os.Remove(copies[0]); err != nil {
			return 0, err
		}
		copies = copies[1:]
	}
	return time.Since(start), nil
}

func copyFile(from, to string) error {
	source, err := os.Open(from) //nolint:gosec // see forget
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	target, err := os.Create(to) //nolint:gosec // see forget
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}
