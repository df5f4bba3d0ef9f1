// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
)

func TestIdentity(t *testing.T) {
	const first = "postgres://app:secret@db-1:5432/shop"
	identity := func(c postgres.Config) string {
		t.Helper()
		text, err := postgres.Identity(c)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	want := identity(postgres.Config{DSN: first, Keyspace: "k"})
	for _, row := range []struct {
		reason string
		config postgres.Config
		same   bool
	}{
		{"another user and password", postgres.Config{DSN: "postgres://other:rotated@db-1:5432/shop", Keyspace: "k"}, true},
		{"the keyword form, TLS options and a pool", postgres.Config{DSN: "host=db-1 dbname=shop user=app sslmode=require pool_max_conns=9", Keyspace: "k"}, true},
		{"the default schema, written", postgres.Config{DSN: first, Schema: "idempotency", Keyspace: "k"}, true},
		{"another host", postgres.Config{DSN: "postgres://app:secret@db-2:5432/shop", Keyspace: "k"}, false},
		{"another port", postgres.Config{DSN: "postgres://app:secret@db-1:5433/shop", Keyspace: "k"}, false},
		{"another database", postgres.Config{DSN: "postgres://app:secret@db-1:5432/other", Keyspace: "k"}, false},
		{"another schema", postgres.Config{DSN: first, Schema: "other", Keyspace: "k"}, false},
		{"another keyspace", postgres.Config{DSN: first, Keyspace: "other"}, false},
		{"one host more", postgres.Config{DSN: "postgres://app:secret@db-1:5432,db-2:5432/shop", Keyspace: "k"}, false},
	} {
		if got := identity(row.config); (got == want) != row.same {
			t.Errorf("%s: got %s beside %s", row.reason, got, want)
		}
	}
	if a, b := identity(postgres.Config{DSN: "postgres://db-1,db-2/shop"}), identity(postgres.Config{DSN: "postgres://db-2,db-1/shop"}); a != b {
		t.Error("the order of hosts counts")
	}
	if _, err := postgres.Identity(postgres.Config{DSN: "postgres://%zz"}); !errors.Is(err, keystore.ErrDSNInvalid) || strings.Contains(err.Error(), "zz") {
		t.Errorf("a bad one: %v", err)
	}
}
