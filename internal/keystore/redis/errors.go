// SPDX-License-Identifier: Apache-2.0

package redis

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// Codes with which our own scripts refuse.
const (
	noEpoch    = "NOEPOCH"
	lostWrites = "LOSTWRITES"
)

// codeOf is the code with which the server, or a script there, refused; empty: it did not.
func codeOf(err error) string {
	var refusal redis.Error
	if err == nil || !errors.As(err, &refusal) || errors.Is(err, redis.Nil) {
		return ""
	}
	code, rest, _ := strings.Cut(refusal.Error(), " ")
	if code == "ERR" && strings.HasPrefix(rest, "max number of clients") {
		return "MAXCLIENTS"
	}
	if code == "ERR" && strings.Contains(rest, "user executing the script") {
		return "NOPERM"
	}
	return strings.TrimPrefix(code, "-")
}

// unavailable turns what the driver says into keystore.ErrUnavailable, with the cause as one of keystore's sentinels. Nothing that the driver
// or the server say is kept but the code: it may hold parts of the DSN, or a key.
func unavailable(ctx context.Context, verb string, err error) error {
	return fmt.Errorf("%s: %w: %w", verb, keystore.ErrUnavailable, cause(ctx, err))
}

// cause is the keystore sentinel for what the driver says.
func cause(ctx context.Context, err error) error {
	switch code := codeOf(err); code {
	case "":
	case "WRONGPASS", "NOAUTH":
		return fmt.Errorf("%w (%s)", keystore.ErrAuthFailed, code)
	case "NOPERM":
		return fmt.Errorf("%w (%s)", keystore.ErrPermissionDenied, code)
	case "READONLY":
		return fmt.Errorf("%w (%s)", keystore.ErrReadOnly, code)
	case noEpoch, lostWrites:
		return fmt.Errorf("%w (%s)", keystore.ErrDataLost, code)
	case "CLUSTERDOWN", "MOVED", "ASK", "TRYAGAIN":
		return fmt.Errorf("%w (%s)", keystore.ErrClusterDegraded, code)
	default:
		return fmt.Errorf("%w (%s)", keystore.ErrUnreachable, code)
	}
	switch {
	case isTLS(err):
		return keystore.ErrTLSFailed
	case errors.Is(err, errReplicas):
		return fmt.Errorf("%w: %w", keystore.ErrClusterDegraded, errReplicas)
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", keystore.ErrUnreachable, ctx.Err())
	}
	return keystore.ErrUnreachable
}

// isTLS recognises failures of the handshake.
func isTLS(err error) bool {
	var certificate *tls.CertificateVerificationError
	var alert tls.AlertError
	var record tls.RecordHeaderError
	var hostname x509.HostnameError
	var authority x509.UnknownAuthorityError
	return errors.As(err, &certificate) || errors.As(err, &alert) || errors.As(err, &record) || errors.As(err, &hostname) || errors.As(err, &authority)
}
