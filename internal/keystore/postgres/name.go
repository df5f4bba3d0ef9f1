// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// prefixBytes of a keyspace's name are kept in the names of its tables, for people. The longest name made from it, that of a function or of a
// partition, stays within the 63 bytes that PostgreSQL keeps.
const prefixBytes = 32

// Relation is the name of the parent table of keyspace: distinct for distinct keyspaces, at most 45 bytes, and never to be quoted.
func Relation(keyspace string) string {
	var b strings.Builder
	b.WriteString("k_")
	for _, c := range []byte(keyspace) {
		if b.Len() == len("k_")+prefixBytes {
			break
		}
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			b.WriteByte(c)
		case 'A' <= c && c <= 'Z':
			b.WriteByte(c - 'A' + 'a')
		default:
			b.WriteByte('_')
		}
	}
	sum := sha256.Sum256([]byte(keyspace))
	return b.String() + "_" + hex.EncodeToString(sum[:5])
}
