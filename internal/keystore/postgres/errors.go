// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// SQLSTATEs that decide what to do: https://www.postgresql.org/docs/current/errcodes-appendix.html, and our own, IK...
const (
	noPartition        = "23514" // check_violation: no partition for the row
	unknownStatement   = "26000"
	duplicateStatement = "42P05"
	readOnly           = "25006"
	undefinedFunction  = "42883"
	undefinedColumn    = "42703"
	permissionDenied   = "42501"
	wrongIsolation     = "IK001"
)

// codeOf is the SQLSTATE in err, or empty.
func codeOf(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// isFatal: whoever said err has closed the connection with it.
func isFatal(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Severity == "FATAL" || pg.SeverityUnlocalized == "FATAL")
}

// unavailable turns what the driver says into keystore.ErrUnavailable, with the cause as one of keystore's sentinels. Nothing that the driver
// or the server say is kept but the SQLSTATE: it may hold parts of the DSN, or a key.
func unavailable(ctx context.Context, verb string, err error) error {
	return fmt.Errorf("%s: %w: %w", verb, keystore.ErrUnavailable, cause(ctx, err))
}

// cause is the keystore sentinel for what the driver says.
func cause(ctx context.Context, err error) error {
	if code := codeOf(err); code != "" {
		if known := causeOf(code, err); known != nil {
			return fmt.Errorf("%w (SQLSTATE %s)", known, code)
		}
		return fmt.Errorf("%w (SQLSTATE %s)", keystore.ErrUnreachable, code)
	}
	switch {
	case isTLS(err):
		return keystore.ErrTLSFailed
	case errors.Is(err, pgconn.ErrReadOnlyConnection):
		return keystore.ErrReadOnly
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", keystore.ErrUnreachable, ctx.Err())
	}
	return keystore.ErrUnreachable
}

func causeOf(code string, err error) error {
	switch code {
	case "28000": // what pg_hba.conf says when only TLS would be let in
		if strings.Contains(err.Error(), "no encryption") {
			return keystore.ErrTLSFailed
		}
		return keystore.ErrAuthFailed
	case "28P01":
		return keystore.ErrAuthFailed
	case readOnly:
		return keystore.ErrReadOnly
	case permissionDenied:
		return keystore.ErrPermissionDenied
	case undefinedFunction, "42P01", undefinedColumn, "42704", "3F000": // undefined function, table, column, type, schema
		return keystore.ErrSchemaOutdated
	}
	return nil
}

// isTLS recognises failures of the handshake. The driver has no type for a server without TLS.
func isTLS(err error) bool {
	var certificate *tls.CertificateVerificationError
	var alert tls.AlertError
	var record tls.RecordHeaderError
	var hostname x509.HostnameError
	var authority x509.UnknownAuthorityError
	return errors.As(err, &certificate) || errors.As(err, &alert) || errors.As(err, &record) || errors.As(err, &hostname) ||
		errors.As(err, &authority) || (err != nil && strings.Contains(err.Error(), "server refused TLS connection"))
}
