// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
)

const (
	// oldestServer is the first version that is supported.
	oldestServer = 150000
	// maxSkew between the clocks of operator and server.
	maxSkew = 10 * time.Second
)

// Clock tells the caller's time.
type Clock interface{ Now() time.Time }

// Probe asks the server how it is. It returns what it saw, even with an error that wraps the sentinel of what is wrong: of several things, the
// first in the order of keystore's sentinels. The texts of its errors do not change from one probe to the next.
func (a *Admin) Probe(ctx context.Context, clock Clock) (keystore.Health, error) {
	var health keystore.Health
	var server int
	var readOnly, migrated, mayCreate, owner bool
	var volatile []string
	conn, err := a.pool.Acquire(ctx)
	if err != nil {
		return health, cause(ctx, err)
	}
	defer conn.Release()
	before := clock.Now()
	err = conn.QueryRow(ctx, a.tmpl.query("probe"), a.schema).Scan(&health.Version, &server, &health.Now, &readOnly, &volatile, &migrated, &mayCreate, &owner)
	if err != nil {
		return health, cause(ctx, err)
	}
	middle := before.Add(clock.Now().Sub(before) / 2)
	health.Version, _, _ = strings.Cut(health.Version, " ") // "15.18 (Debian ...)"
	switch {
	case readOnly:
		return health, keystore.ErrReadOnly
	case len(volatile) > 0:
		return health, fmt.Errorf("%w: %s is off", keystore.ErrNotDurable, strings.Join(volatile, ", "))
	case server < oldestServer:
		return health, fmt.Errorf("%w: PostgreSQL 15 or newer is needed", keystore.ErrSchemaOutdated)
	case !mayCreate:
		return health, fmt.Errorf("%w: the operator's role needs CREATE on schema %s, or on the database to make it", keystore.ErrPermissionDenied, a.schema)
	case !owner:
		return health, fmt.Errorf("%w: the operator's role must own the tables in schema %s", keystore.ErrPermissionDenied, a.schema)
	case !migrated:
		return health, fmt.Errorf("%w: there is no schema %s yet", keystore.ErrSchemaOutdated, a.schema)
	}
	if err := conn.QueryRow(ctx, a.tmpl.query("migrate_version")).Scan(&health.SchemaVersion); err != nil {
		return health, cause(ctx, err)
	}
	if health.SchemaVersion != latest() {
		return health, fmt.Errorf("%w: it is at version %d and version %d is needed", keystore.ErrSchemaOutdated, health.SchemaVersion, latest())
	}
	if skew := health.Now.Sub(middle).Abs(); skew > maxSkew {
		return health, keystore.ErrClockSkew
	}
	return health, nil
}
