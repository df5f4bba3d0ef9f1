// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/keystoretest"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/keystore/sealed"
)

// vault is a store that seals, whose key ring a test changes.
type vault struct {
	*sealed.Store
	ring       *sealed.Ring
	unreadable []error
}

func seal(inner keystore.Store) *vault {
	v := &vault{}
	v.Store = sealed.New(inner, sealed.Config{
		Keyspace: keyspaceName, Ring: func() *sealed.Ring { return v.ring }, Unreadable: func(err error) { v.unreadable = append(v.unreadable, err) },
	})
	return v
}

// use makes the keys of ids the ring, the first of them the active one. No id: no ring.
func (v *vault) use(t testing.TB, ids ...string) {
	t.Helper()
	text := ""
	for _, id := range ids {
		text += id + " " + base64.StdEncoding.EncodeToString([]byte(fmt.Sprintf("%-32s", id))) + "\n"
	}
	v.ring = nil
	if len(ids) == 0 {
		return
	}
	var err error
	if v.ring, err = sealed.ParseRing([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// TestConformanceOfSealed: what is sealed, and opened again, is the same store.
func TestConformanceOfSealed(t *testing.T) {
	keystoretest.Run(t, func(t *testing.T) keystoretest.Harness {
		h := harness(t, nil)
		open := h.Open
		h.Open = func(t testing.TB, addr string) keystore.Store {
			v := seal(open(t, addr))
			v.use(t, "one")
			return v
		}
		return h
	})
}

// sealedWorld is a keyspace with a sealing store.
func sealedWorld(t *testing.T) (*database, *vault) {
	d := newDatabase(t)
	d.partitions(keystoretest.Start(), 2)
	d.setClock(keystoretest.Start())
	return d, seal(d.open(t, d.sidecar()))
}

func request(key string) keystore.Reservation {
	return keystore.Reservation{
		Client: "alice", Key: key, Token: keystore.NewToken(), Holder: keystore.NewHolder(), Lease: time.Minute, Window: time.Hour, Route: "route",
	}
}

func record(t *testing.T, v *vault, key string, answer keystore.Answer) {
	t.Helper()
	r := request(key)
	if d, err := v.Reserve(t.Context(), r); err != nil || d.Outcome != keystore.New {
		t.Fatalf("reserve %s: outcome %d, %v", key, d.Outcome, err)
	}
	if err := v.Complete(t.Context(), keystore.Ownership{Client: r.Client, Key: r.Key, Token: r.Token}, answer); err != nil {
		t.Fatal(err)
	}
}

// replays wants answer for a retry of key.
func replays(t *testing.T, v *vault, key string, answer keystore.Answer) {
	t.Helper()
	d, err := v.Reserve(t.Context(), request(key))
	if err != nil || d.Outcome != keystore.Completed {
		t.Fatalf("%s: outcome %d, %v", key, d.Outcome, err)
	}
	if diff := cmp.Diff(answer, *d.Answer, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", key, diff)
	}
}

func payment(id string) keystore.Answer {
	return keystore.Answer{Status: 201, Header: http.Header{"Location": {"/payments/" + id}}, Body: []byte(`{"id":"` + id + `"}`)}
}

func lost() keystore.Answer { return keystore.Answer{Tombstone: keystore.Unreadable, Status: 201} }

// row is everything that a reader of the database sees of an entry.
func (d *database) row(key string) string {
	d.Helper()
	var text string
	sql := fmt.Sprintf(`SELECT t::text || convert_from(header, 'LATIN1') || encode(body, 'escape') FROM idempotency.%s t WHERE key = $1`, postgres.Relation(keyspaceName))
	d.must(d.conn.QueryRow(context.Background(), sql, key).Scan(&text))
	return text
}

// TestReadersSeeNoPayload: a SELECT of a row shows neither the body nor a field's value, and does where nothing is sealed.
func TestReadersSeeNoPayload(t *testing.T) {
	d, v := sealedWorld(t)
	record(t, v, "clear", payment("4711"))
	v.use(t, "one")
	record(t, v, "sealed", payment("4711"))
	for _, secret := range []string{"4711", "/payments/", "Location", base64.StdEncoding.EncodeToString([]byte("/payments/4711"))} {
		if strings.Contains(d.row("sealed"), secret) {
			t.Errorf("%q shows in %s", secret, d.row("sealed"))
		}
	}
	for _, plain := range []string{"4711", "/payments/", "Location"} {
		if !strings.Contains(d.row("clear"), plain) {
			t.Errorf("this test cannot fail: %q does not show in %s", plain, d.row("clear"))
		}
	}
	if !strings.Contains(d.row("sealed"), "Sealed") || !strings.Contains(d.row("sealed"), "one") {
		t.Errorf("that it is sealed, and with which key, does not show in %s", d.row("sealed"))
	}
	replays(t, v, "sealed", payment("4711"))
}

// TestPlainAnswersStay: what was recorded before there was a key, and what an app records itself, replays as it is. A tombstone stays what it is.
func TestPlainAnswersStay(t *testing.T) {
	d, v := sealedWorld(t)
	record(t, v, "before", payment("1"))
	v.use(t, "one")
	replays(t, v, "before", payment("1"))
	r := request("by-the-app")
	if _, err := v.Reserve(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	text := keystore.Ownership{Client: r.Client, Key: r.Key, Token: r.Token}.Text(keyspaceName)
	d.exec(`SELECT idempotency.complete('` + text + `', 201, '{"Location": "/payments/2"}', '{"id":"2"}')`)
	replays(t, v, "by-the-app", payment("2"))
	record(t, v, "large", keystore.Answer{Tombstone: keystore.TooLarge, Status: 201})
	replays(t, v, "large", keystore.Answer{Tombstone: keystore.TooLarge, Status: 201})
}

// TestRotationOfKeys: old answers are readable under the second key, tombstones without it, and readable again with it. They never execute again.
func TestRotationOfKeys(t *testing.T) {
	_, v := sealedWorld(t)
	v.use(t, "one")
	record(t, v, "old", payment("1"))
	v.use(t, "two", "one")
	record(t, v, "new", payment("2"))
	replays(t, v, "old", payment("1"))
	replays(t, v, "new", payment("2"))
	for _, ids := range [][]string{{"two"}, {"three"}, nil} {
		v.use(t, ids...)
		v.unreadable = nil
		replays(t, v, "old", lost())
		if len(v.unreadable) != 1 || !errors.Is(v.unreadable[0], sealed.ErrKeyUnknown) {
			t.Errorf("with %v: reported %v", ids, v.unreadable)
		}
	}
	v.use(t, "three", "two", "one")
	replays(t, v, "old", payment("1"))
	replays(t, v, "new", payment("2"))
}

// TestWritersMoveNothing: whoever can write to the database makes answers unreadable, and not another entry's.
func TestWritersMoveNothing(t *testing.T) {
	parent := "idempotency." + postgres.Relation(keyspaceName)
	for _, row := range []struct{ reason, sql string }{
		{"the answers of two entries are swapped", `UPDATE %[1]s a SET header = b.header, body = b.body FROM %[1]s b WHERE a.key <> b.key`},
		{"an entry is given another's name", `DELETE FROM %[1]s WHERE key = 'a';
			UPDATE %[1]s SET key = 'a' WHERE key = 'b'`},
		{"one byte differs", `UPDATE %[1]s SET body = set_byte(body, 20, get_byte(body, 20) # 1)`},
		{"the body is gone", `UPDATE %[1]s SET body = NULL`},
		{"another key's id", `UPDATE %[1]s SET header = convert_to('{"Idempotency-Sealed":["two"]}', 'UTF8')`},
		{"no key's id", `UPDATE %[1]s SET header = NULL`},
	} {
		t.Run(row.reason, func(t *testing.T) {
			d, v := sealedWorld(t)
			v.use(t, "one", "two")
			record(t, v, "a", payment("1"))
			record(t, v, "b", payment("2"))
			d.exec(fmt.Sprintf(row.sql, parent))
			replays(t, v, "a", lost())
			if len(v.unreadable) != 1 {
				t.Errorf("reported %v", v.unreadable)
			}
		})
	}
	t.Run("another status", func(t *testing.T) {
		d, v := sealedWorld(t)
		v.use(t, "one")
		record(t, v, "a", payment("1"))
		d.exec("UPDATE " + parent + " SET status = 200")
		replays(t, v, "a", keystore.Answer{Tombstone: keystore.Unreadable, Status: 200})
	})
}

// TestOlderSidecarsKeepAway: a sidecar that knows nothing of sealing takes a sealed answer for one that was not kept, and replays no ciphertext.
func TestOlderSidecarsKeepAway(t *testing.T) {
	d, v := sealedWorld(t)
	v.use(t, "one")
	record(t, v, "a", payment("1"))
	decision, err := d.open(t, d.dsn).Reserve(t.Context(), request("a"))
	if err != nil || decision.Answer == nil || decision.Answer.Tombstone == "" {
		t.Errorf("%+v, %v", decision.Answer, err)
	}
}
