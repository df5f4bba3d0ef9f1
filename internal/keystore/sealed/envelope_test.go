// SPDX-License-Identifier: Apache-2.0

package sealed

import (
	"bytes"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/idempotency-dev/operator/internal/keystore"
)

var here = place{"shop.payments", "alice", "order-17"}

func sample() keystore.Answer {
	return keystore.Answer{Status: 201, Header: http.Header{"Location": {"/payments/1"}, "Link": {"a", "\xe9\xff", ""}}, Body: []byte("\x00\xff{}")}
}

func sealedBy(t testing.TB, r *Ring, p place, answer keystore.Answer) keystore.Answer {
	t.Helper()
	stored, err := r.seal(p, answer)
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

func TestSealAndOpen(t *testing.T) {
	r := parse(t, "a "+keyText(1, 32))
	for _, row := range []struct {
		reason string
		answer keystore.Answer
	}{
		{"header and body", sample()},
		{"nothing", keystore.Answer{Status: 204}},
		{"a reference", keystore.Answer{Status: 201, Tombstone: keystore.Referenced, Header: http.Header{"Location": {"/payments/secret"}}}},
		{"a body that begins like a header", keystore.Answer{Status: 200, Body: []byte("\x02{}")}},
		{"a megabyte", keystore.Answer{Status: 200, Body: bytes.Repeat([]byte("0123456789abcdef"), 1<<16)}},
	} {
		stored := sealedBy(t, r, here, row.answer)
		if stored.Tombstone != keystore.Sealed || stored.Status != row.answer.Status {
			t.Errorf("%s: stored as %s %d", row.reason, stored.Tombstone, stored.Status)
		}
		if diff := cmp.Diff(http.Header{"Idempotency-Sealed": {"a"}}, stored.Header); diff != "" {
			t.Errorf("%s: header (-want +got):\n%s", row.reason, diff)
		}
		got, err := r.open(here, stored)
		if err != nil {
			t.Errorf("%s: %v", row.reason, err)
		}
		if diff := cmp.Diff(row.answer, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.reason, diff)
		}
	}
}

// TestSealedTwiceDiffers: equal answers of one entry cannot be told to be equal.
func TestSealedTwiceDiffers(t *testing.T) {
	r := parse(t, "a "+keyText(1, 32))
	if bytes.Equal(sealedBy(t, r, here, sample()).Body, sealedBy(t, r, here, sample()).Body) {
		t.Error("the same ciphertext twice")
	}
}

// TestSizeGrowsByAConstant, apart from the header's own encoding.
func TestSizeGrowsByAConstant(t *testing.T) {
	r := parse(t, "a "+keyText(1, 32))
	empty := len(sealedBy(t, r, here, keystore.Answer{Status: 200}).Body)
	for _, n := range []int{1, 1000, 1 << 20} {
		if got := len(sealedBy(t, r, here, keystore.Answer{Status: 200, Body: make([]byte, n)}).Body) - n; got != empty {
			t.Errorf("%d bytes grow by %d, none by %d", n, got, empty)
		}
	}
	if empty > 32 {
		t.Errorf("nothing becomes %d bytes", empty)
	}
}

// TestOpensNowhereElse: an answer is bound to everything that is in clear beside it, however its parts are put together.
func TestOpensNowhereElse(t *testing.T) {
	r := parse(t, "a "+keyText(1, 32), "b "+keyText(2, 32))
	for _, row := range []struct {
		reason string
		at     place
		change func(*keystore.Answer)
		want   error
	}{
		{"another keyspace", place{"shop.orders", here.client, here.key}, nil, ErrDamaged},
		{"another client", place{here.keyspace, "bob", here.key}, nil, ErrDamaged},
		{"another key", place{here.keyspace, here.client, "order-18"}, nil, ErrDamaged},
		{"client and key swapped", place{here.keyspace, here.key, here.client}, nil, ErrDamaged},
		{"joined, it is the same", place{here.keyspace, here.client + "o", strings.TrimPrefix(here.key, "o")}, nil, ErrDamaged},
		{"another status", here, func(a *keystore.Answer) { a.Status = 200 }, ErrDamaged},
		{"another key's id", here, func(a *keystore.Answer) { a.Header = http.Header{headerKey: {"b"}} }, ErrDamaged},
		{"an unknown key's id", here, func(a *keystore.Answer) { a.Header = http.Header{headerKey: {"c"}} }, ErrKeyUnknown},
		{"no key's id", here, func(a *keystore.Answer) { a.Header = nil }, ErrKeyUnknown},
		{"no body", here, func(a *keystore.Answer) { a.Body = nil }, ErrDamaged},
		{"a whole answer as a reference", here, func(a *keystore.Answer) { a.Body[0] = reference }, ErrDamaged},
		{"another version", here, func(a *keystore.Answer) { a.Body[0] = 3 }, ErrDamaged},
		{"the version alone", here, func(a *keystore.Answer) { a.Body = a.Body[:1] }, ErrDamaged},
		{"one byte less", here, func(a *keystore.Answer) { a.Body = a.Body[:len(a.Body)-1] }, ErrDamaged},
		{"one byte more", here, func(a *keystore.Answer) { a.Body = append(a.Body, 0) }, ErrDamaged},
	} {
		stored := sealedBy(t, r, here, sample())
		if row.change != nil {
			row.change(&stored)
		}
		if got, err := r.open(row.at, stored); !errors.Is(err, row.want) || !cmp.Equal(got, keystore.Answer{}) {
			t.Errorf("%s: %v with %d bytes, want %v", row.reason, err, len(got.Body), row.want)
		}
	}
	stored := sealedBy(t, r, here, sample())
	for i := range stored.Body {
		changed := stored
		changed.Body = slices.Clone(stored.Body)
		changed.Body[i] ^= 1
		if _, err := r.open(here, changed); !errors.Is(err, ErrDamaged) {
			t.Errorf("byte %d changed: %v", i, err)
		}
	}
}

// TestRotation: with the new key in front old answers open; without the old one they do not; and the same id with other bytes is another key.
func TestRotation(t *testing.T) {
	before := parse(t, "old "+keyText(1, 32))
	stored := sealedBy(t, before, here, sample())
	both := parse(t, "new "+keyText(2, 32), "old "+keyText(1, 32))
	if _, err := both.open(here, stored); err != nil {
		t.Errorf("while the old key is there: %v", err)
	}
	if id := sealedBy(t, both, here, sample()).Header.Get(headerKey); id != "new" {
		t.Errorf("sealed with %q", id)
	}
	for _, row := range []struct {
		reason string
		ring   *Ring
		want   error
	}{
		{"the old key is gone", parse(t, "new "+keyText(2, 32)), ErrKeyUnknown},
		{"there is no ring", nil, ErrKeyUnknown},
		{"the old id has a new key", parse(t, "old "+keyText(2, 32)), ErrDamaged},
	} {
		if _, err := row.ring.open(here, stored); !errors.Is(err, row.want) {
			t.Errorf("%s: %v, want %v", row.reason, err, row.want)
		}
	}
}

// TestDecode: what is inside is authentic, and read with care all the same.
func TestDecode(t *testing.T) {
	for _, plain := range []string{"", "\x80", "\x03{}", "\x02[]", "\x02{", "\x01{}", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01{}", "\x09{\"A\":\"b\"}"} {
		if _, err := decode(200, []byte(plain)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%q: %v", plain, err)
		}
	}
}
