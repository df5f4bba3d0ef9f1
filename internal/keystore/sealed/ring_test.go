// SPDX-License-Identifier: Apache-2.0

package sealed

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"
)

// keyText is a key of n bytes b.
func keyText(b byte, n int) string {
	return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, n))
}

func parse(t testing.TB, lines ...string) *Ring {
	t.Helper()
	r, err := ParseRing([]byte(strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestParseRing(t *testing.T) {
	one, two := keyText(1, 32), keyText(2, 32)
	longest := strings.Repeat("A", 60) + "z9._"
	for _, row := range []struct{ reason, text, active, ids string }{
		{"one key", "a " + one, "a", "a"},
		{"the first of two is active", "b " + two + "\na " + one + "\n", "b", "a b"},
		{"comments and blank lines", "# 2026\n\n \t\n  # more\na " + one + "\n#b " + two + "\n", "a", "a"},
		{"tabs, spaces and carriage returns", "\ta \t " + one + " \r\nb " + two + "\r\n", "a", "a b"},
		{"the longest id", longest + " " + one, longest, longest},
		{"every kind of character", "2026-11.b_1 " + one, "2026-11.b_1", "2026-11.b_1"},
	} {
		r := parse(t, row.text)
		if r.active != row.active || len(r.keys) != len(strings.Fields(row.ids)) {
			t.Errorf("%s: %d keys, %q is active", row.reason, len(r.keys), r.active)
		}
		for id := range strings.FieldsSeq(row.ids) {
			want := one
			if id == "b" {
				want = two
			}
			if base64.StdEncoding.EncodeToString(r.keys[id]) != want {
				t.Errorf("%s: key %s is another", row.reason, id)
			}
		}
	}
}

// TestParseRingRefuses: the error says where and what, and shows nothing that is, or could be, a key.
func TestParseRingRefuses(t *testing.T) {
	good := "a " + keyText(1, 32) + "\n"
	for _, row := range []struct{ reason, text, want string }{
		{"empty", "", "no key"},
		{"comments only", "# a " + keyText(1, 32) + "\n\n", "no key"},
		{"no key behind the id", good + "SECRET\n", "line 2: want an id and a key"},
		{"three words", good + "\nb SECRET SECRET\n", "line 3: want an id and a key"},
		{"key and id without a space", "a:" + keyText(7, 32), "line 1: want an id and a key"},
		{"an id that is too long", strings.Repeat("S", 65) + " " + keyText(1, 32), "line 1: the id"},
		{"an id with a slash", "SEC/RET " + keyText(1, 32), "line 1: the id"},
		{"key first", keyText(7, 32) + " a", "line 1: the id"},
		{"not base64", "b SECRET!", "line 1: the key is not in base64"},
		{"base64 for URLs", "b " + base64.URLEncoding.EncodeToString(bytes.Repeat([]byte{0xff}, 32)), "line 1: the key is not in base64"},
		{"no padding", "b " + strings.TrimRight(keyText(7, 32), "="), "line 1: the key is not in base64"},
		{"bits beyond the last byte", "b " + strings.Repeat("A", 42) + "B=", "line 1: the key is not in base64"},
		{"31 bytes", "b " + keyText(7, 31), "line 1: the key has 31 bytes, want 32"},
		{"33 bytes", "b " + keyText(7, 33), "line 1: the key has 33 bytes, want 32"},
		{"the same id twice", "#\n" + good + "\na " + keyText(2, 32), "line 4: its id is that of line 2"},
	} {
		_, err := ParseRing([]byte(row.text))
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: error %v, want %q", row.reason, err, row.want)
			continue
		}
		for _, secret := range []string{"SEC", "SSSS", keyText(7, 32)[:8], "____"} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: the error shows %q: %v", row.reason, secret, err)
			}
		}
	}
}

func FuzzParseRing(f *testing.F) {
	f.Add([]byte("a " + keyText(1, 32) + "\n# x\nb " + keyText(2, 32)))
	f.Add([]byte("a\x00 b"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := ParseRing(text)
		if err != nil {
			if r != nil {
				t.Error("a ring beside an error")
			}
			return
		}
		if len(r.keys[r.active]) != keyBytes {
			t.Error("there is no active key")
		}
		for id, key := range r.keys {
			if !idForm.MatchString(id) || len(key) != keyBytes {
				t.Errorf("id of %d bytes, key of %d bytes", len(id), len(key))
			}
		}
	})
}
