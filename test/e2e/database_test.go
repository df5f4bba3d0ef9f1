// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-dev/operator/internal/localpg"
)

// database is a PostgreSQL server on this machine that pods can reach, with a role for the operator and one for the sidecars.
type database struct {
	dir    string
	host   string
	server *localpg.Server
	port   int
}

func startDatabase(ctx context.Context) (*database, error) {
	host := os.Getenv("E2E_HOST_ADDRESS")
	if host == "" {
		host = "10.88.0.1"
	}
	dir, err := os.MkdirTemp("", "idempotency-e2e-postgres-")
	if err != nil {
		return nil, err
	}
	d := &database{dir: dir, host: host}
	if err := d.start(ctx); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	for _, statement := range []string{
		`CREATE ROLE idem_operator LOGIN PASSWORD 'operator-secret'`,
		`CREATE ROLE idem_sidecar LOGIN PASSWORD 'sidecar-secret'`,
	} {
		if err := d.exec(ctx, "postgres", statement); err != nil {
			d.stop()
			return nil, err
		}
	}
	return d, nil
}
