// SPDX-License-Identifier: Apache-2.0

package redis

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// scanned is about how many keys one step of a search looks at.
const scanned = 1000

// DropKeyspace removes the keyspace with all its entries, the epochs first, so that nothing is granted any more. It succeeds when there is none, and
// fails with keystore.ErrKeyspaceTaken when the claim is another's.
func (a *Admin) DropKeyspace(ctx context.Context, name, claim string) error {
	keys := newKeyspace(name)
	for _, r := range a.each(keys, func(b bucket) reply {
		found, err := a.client().HMGet(ctx, b.epoch(), "claim").Result()
		if err == nil && found[0] != nil && found[0] != claim {
			return reply{err: keystore.ErrKeyspaceTaken}
		}
		return reply{err: err}
	}) {
		if r.err == keystore.ErrKeyspaceTaken { //nolint:errorlint // our own, from above
			return fmt.Errorf("drop keyspace %s: %w", name, r.err)
		}
		if r.err != nil {
			return unavailable(ctx, "drop keyspace "+name, r.err)
		}
	}
	for _, r := range a.each(keys, func(b bucket) reply { return reply{err: a.client().Del(ctx, b.epoch()).Err()} }) {
		if r.err != nil {
			return unavailable(ctx, "drop keyspace "+name, r.err)
		}
	}
	sweep := func(ctx context.Context, server *redis.Client) error {
		return a.sweep(ctx, server, keyspacePrefix(name))
	}
	var err error
	if a.cluster != nil {
		err = a.cluster.ForEachMaster(ctx, sweep)
	} else {
		err = sweep(ctx, a.single)
	}
	if err != nil {
		return unavailable(ctx, "drop keyspace "+name, err)
	}
	return nil
}

// sweep removes the keys of the keyspace with this prefix, and of no other that begins alike, from one server.
func (a *Admin) sweep(ctx context.Context, server *redis.Client, prefix string) error {
	for cursor := uint64(0); ; {
		found, next, err := server.Scan(ctx, cursor, globQuoter().Replace(prefix)+"{*", scanned).Result()
		if err != nil {
			return err
		}
		pipe := server.Pipeline() // each key alone: they are of several slots
		for _, key := range found {
			pipe.Unlink(ctx, key)
		}
		if len(found) > 0 {
			if _, err := pipe.Exec(ctx); err != nil {
				return err
			}
		}
		if next == 0 {
			return nil
		}
		cursor = next
	}
}

// globQuoter keeps characters from being read as a pattern.
func globQuoter() *strings.Replacer {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`)
}
