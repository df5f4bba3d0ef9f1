// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"github.com/jackc/pgx/v5/pgxpool"

	"context"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// parse reads a connection string. What pgx says of a bad one repeats parts of it, so nothing of that is kept.
func parse(dsn string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, keystore.ErrDSNInvalid
	}
	config.MinConns, config.MinIdleConns = 0, 0
	config.MaxConnIdleTime, config.HealthCheckPeriod = idleTimeout, idleCheck
	// A lost connection shows at its first use, and the call is repeated; asking first would cost a round trip.
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "idempotency"
	}
	return config, nil
}

// UserOf is the role that dsn connects as. It fails with keystore.ErrDSNInvalid.
func UserOf(dsn string) (string, error) {
	config, err := parse(dsn)
	if err != nil {
		return "", err
	}
	if config.ConnConfig.User == "" {
		return "", keystore.ErrDSNInvalid
	}
	return config.ConnConfig.User, nil
}
