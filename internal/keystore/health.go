// SPDX-License-Identifier: Apache-2.0

package keystore

import (
	"errors"
	"time"
)

// Health is what a probe saw of a store that answers.
type Health struct {
	// Version of the server, such as "15.18".
	Version string
	// SchemaVersion is the number of the last migration; 0 before the first.
	SchemaVersion int32
	// Now is the server's clock while it answered.
	Now time.Time
}

// What a probe of a store can find wrong. Their texts, and those of the errors that wrap them, never hold any part of a DSN.
var (
	// ErrDSNInvalid: the connection string cannot be parsed.
	ErrDSNInvalid = errors.New("connection string is not valid")
	// ErrUnreachable: no connection, or no answer in time.
	ErrUnreachable = errors.New("store is unreachable")
	// ErrAuthFailed: the server refuses the user or the password.
	ErrAuthFailed = errors.New("store refuses the credentials")
	// ErrTLSFailed: no TLS, or a certificate that does not hold.
	ErrTLSFailed = errors.New("TLS with the store failed")
	// ErrReadOnly: the server is a standby or read-only.
	ErrReadOnly = errors.New("store is read-only")
	// ErrNotDurable: the server may lose what it has acknowledged.
	ErrNotDurable = errors.New("store is not durable")
	// ErrDataLost: the server may have lost entries that it had acknowledged, or the keyspace as a whole.
	ErrDataLost = errors.New("store may have lost entries")
	// ErrEvictionPossible: the server removes entries when its memory is full.
	ErrEvictionPossible = errors.New("store may evict entries")
	// ErrPersistenceOff: the server forgets everything when it ends.
	ErrPersistenceOff = errors.New("store keeps nothing on disk")
	// ErrClusterDegraded: slots without a server, or fewer replicas than asked for.
	ErrClusterDegraded = errors.New("store's cluster is degraded")
	// ErrSchemaOutdated: tables or functions are missing, or older or newer than this program understands.
	ErrSchemaOutdated = errors.New("store schema does not fit this version")
	// ErrPermissionDenied: the role lacks a privilege.
	ErrPermissionDenied = errors.New("store denies permission")
	// ErrClockSkew: the clocks of caller and server differ by more than 10 seconds.
	ErrClockSkew = errors.New("clocks of operator and store differ")
	// ErrKeyspaceTaken: the keyspace belongs to another policy that did not name it on purpose.
	ErrKeyspaceTaken = errors.New("keyspace is taken")
)
