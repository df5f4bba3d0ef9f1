// SPDX-License-Identifier: Apache-2.0

package redis_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/redis"
)

func TestDSN(t *testing.T) {
	for _, row := range []struct {
		reason, dsn string
		valid       bool
	}{
		{"one server", "redis://host", true},
		{"all that one server has", "rediss://user:secret@host:6380/3", true},
		{"a cluster", "redis://a:1?cluster=true&addr=b:2&addr=c:3", true},
		{"sentinels", "redis://a:1/2?master_name=main&addr=b:2&sentinel_username=u&sentinel_password=p", true},
		{"nothing", "", false},
		{"another scheme", "postgres://host/db", false},
		{"no host", "redis:///0", false},
		{"several servers without a word on what they are", "redis://a:1?addr=b:2", false},
		{"an address without a port", "redis://a:1?cluster=true&addr=b", false},
		{"a cluster of sentinels", "redis://a:1?cluster=true&master_name=main", false},
		{"a database of a cluster", "redis://a:1/1?cluster=true", false},
		{"a database that is no number", "redis://a:1/secret", false},
		{"a negative database", "redis://a:1/-1", false},
		{"a parameter that nobody reads", "redis://a:1?read_timeout=secret", false},
		{"one twice", "redis://a:1?master_name=a&master_name=b", false},
		{"cluster is yes", "redis://a:1?cluster=yes", false},
		{"an authority without TLS", "redis://a:1?ca=c2VjcmV0", false},
		{"an authority that is no certificate", "rediss://a:1?ca=c2VjcmV0", false},
		{"an authority that is not in base64", "rediss://a:1?ca=-secret", false},
		{"a query that cannot be read", "redis://a:1?ca=%secret", false},
		{"a fragment", "redis://a:1#secret", false},
	} {
		s, err := redis.Open(redis.Config{DSN: row.dsn})
		if err == nil {
			s.Close()
		}
		if (err == nil) != row.valid || err != nil && (!errors.Is(err, keystore.ErrDSNInvalid) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s: %v", row.reason, err)
		}
	}
}

func TestIdentity(t *testing.T) {
	identity := func(dsn, keyspace string) string {
		id, err := redis.Identity(redis.Config{DSN: dsn, Keyspace: keyspace})
		must(t, err)
		return id
	}
	want := identity("redis://a:1?cluster=true&addr=b:2", "k")
	for _, row := range []struct {
		reason, dsn, keyspace string
		same                  bool
	}{
		{"another order and user, and TLS", "rediss://user:secret@b:2?addr=a:1&cluster=true", "k", true},
		{"another keyspace", "redis://a:1?cluster=true&addr=b:2", "l", false},
		{"another server", "redis://a:1?cluster=true&addr=c:2", "k", false},
		{"a server of sentinels", "redis://a:1?master_name=m&addr=b:2", "k", false},
	} {
		if (identity(row.dsn, row.keyspace) == want) != row.same {
			t.Errorf("%s: want the same: %v", row.reason, row.same)
		}
	}
	if identity("redis://a:1", "k") == identity("redis://a:1/1", "k") {
		t.Error("two databases are one store")
	}
}

// TestBuckets: evenly along the slots, each once, whatever the keyspace is called.
func TestBuckets(t *testing.T) {
	for _, keyspace := range []string{"shop.payments", "", "{}", strings.Repeat("ä", 300)} {
		perSixth := map[int]int{}
		seen := map[string]bool{}
		for i := 0; len(seen) < 60; i++ {
			slot, epoch, entry := redis.SlotOf(keyspace, "client", string(rune(i)))
			if !strings.HasPrefix(entry, strings.TrimSuffix(epoch, "epoch")) {
				t.Fatalf("entry %s is not in the bucket of %s", entry, epoch)
			}
			if !seen[epoch] {
				seen[epoch] = true
				perSixth[slot*6/16384]++
			}
		}
		for sixth, n := range perSixth {
			if n != 10 {
				t.Errorf("keyspace %.10q: %d buckets in sixth %d of the slots, want 10", keyspace, n, sixth)
			}
		}
	}
}
