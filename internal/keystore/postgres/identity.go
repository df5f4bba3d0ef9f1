// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// Identity tells the entries that c names from those of other stores, by servers, database, schema and keyspace: the same whoever connects, and in
// whatever form and with whatever options the connection string is written. One store under two host names has two. Nothing in it is secret, and the
// names cannot be read from it. It fails with keystore.ErrDSNInvalid.
func Identity(c Config) (string, error) {
	config, err := parse(c.DSN)
	if err != nil {
		return "", keystore.ErrDSNInvalid
	}
	servers := []string{fmt.Sprintf("%s %d", config.ConnConfig.Host, config.ConnConfig.Port)}
	for _, other := range config.ConnConfig.Fallbacks { // with and without TLS, and the other hosts
		servers = append(servers, fmt.Sprintf("%s %d", other.Host, other.Port))
	}
	slices.Sort(servers)
	parts := append(slices.Compact(servers), "", config.ConnConfig.Database, orDefault(c.Schema, defaultSchema), c.Keyspace)
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return "postgres:" + hex.EncodeToString(sum[:16]), nil
}
