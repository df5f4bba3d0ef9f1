// SPDX-License-Identifier: Apache-2.0

package redis

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/url"
)

const (
	// buckets of a keyspace. Each is one hash slot of its own, so that a script sees an entry, the lease of its holder and the epoch at once. It
	// divides evenly among 1 to 6, 10, 12, 15, 20 and 30 primaries.
	buckets = 60
	// slots of a cluster: https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
	slots = 16384
)

// bucket names the keys of one bucket.
type bucket struct{ prefix string }

func (b bucket) epoch() string { return b.prefix + "epoch" }

// leases is what the key of every lease begins with; the holder's name follows.
func (b bucket) leases() string { return b.prefix + "h:" }

func (b bucket) entries() string { return b.prefix + "e:" }

// keyspace is the buckets of one keyspace.
type keyspace [buckets]bucket

// newKeyspace names every key: idempotency:<keyspace>:{<tag>}:... What stands in braces decides the slot.
func newKeyspace(name string) *keyspace {
	var k keyspace
	digest := sha256.Sum256([]byte(name))
	seed := hex.EncodeToString(digest[:4])
	for found, n := 0, 0; found < buckets; n++ {
		tag := fmt.Sprint(seed, ".", n)
		i := int(slotOf(tag)) * buckets / slots // buckets lie evenly along the slots
		if k[i].prefix == "" {
			k[i].prefix = keyspacePrefix(name) + "{" + tag + "}:"
			found++
		}
	}
	return &k
}

// keyspacePrefix is what every key of the keyspace begins with. Braces in its name would be taken for the tag.
func keyspacePrefix(name string) string { return "idempotency:" + url.PathEscape(name) + ":" }

// locate returns the bucket of an entry, and the entry's key. Both come from the hash of client and key, told apart by the client's length.
func (k *keyspace) locate(client, key string) (bucket, string) {
	text := binary.BigEndian.AppendUint32(nil, uint32(len(client)))
	digest := sha256.Sum256(append(append(text, client...), key...))
	b := k[binary.BigEndian.Uint32(digest[:])%buckets]
	return b, b.entries() + base64.RawURLEncoding.EncodeToString(digest[:])
}

// slotOf is CRC16 (XMODEM) of a tag, as Redis Cluster has it.
func slotOf(tag string) uint16 {
	var crc uint16
	for i := range len(tag) {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % slots
}
