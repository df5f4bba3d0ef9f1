// SPDX-License-Identifier: Apache-2.0

package redis

import (
	"context"
	"net"
)

// OpenBy is Open with a way to the servers of its own.
func OpenBy(c Config, dial func(ctx context.Context, network, addr string) (net.Conn, error)) (*Store, error) {
	return open(c, dial)
}

// SlotOf and Buckets show where a keyspace's keys are.
func SlotOf(keyspace, client, key string) (slot int, epoch, entry string) {
	b, entry := newKeyspace(keyspace).locate(client, key)
	tag := b.prefix[len(keyspacePrefix(keyspace))+1 : len(b.prefix)-2]
	return int(slotOf(tag)), b.epoch(), entry
}
