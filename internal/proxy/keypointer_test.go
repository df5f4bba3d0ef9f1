// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestPointedKey(t *testing.T) {
	for _, row := range []struct {
		document, pointer, key string
		err                    error
		reason                 string
	}{
		{`{"id":"evt_1"}`, "/id", "evt_1", nil, "a string"},
		{` { "id" : "evt_1" } `, "/id", "evt_1", nil, "white space"},
		{`{"\u0069d":"\u0065vt_1"}`, "/id", "evt_1", nil, "escapes are another spelling of the same text"},
		{`{"data":[{"id":"a"},{"id":"b"}]}`, "/data/1/id", "b", nil, "an element"},
		{`{"a/b":{"m~n":{"~1":"x"}}}`, "/a~1b/m~0n/~01", "x", nil, "escapes of a pointer, undone once"},
		{`{"":"x"}`, "/", "x", nil, "a name may be empty"},
		{`{"0":"x"}`, "/0", "x", nil, "a name may be a number"},
		{`{"id":12}`, "/id", "=12", nil, "an integer"},
		{`{"id":"12"}`, "/id", "12", nil, "the same as text is another key"},
		{`{"id":"=12"}`, "/id", "==12", nil, "text that looks like the key of an integer"},
		{`{"id":9007199254740993}`, "/id", "=9007199254740993", nil, "one that a float64 cannot hold"},
		{`{"id":-7}`, "/id", "=-7", nil, "a negative integer"},
		{`{"id":0}`, "/id", "=0", nil, "nought"},
		{`{"id":-0}`, "/id", "", errKeyInvalid, "another spelling of nought"},
		{`{"id":12.0}`, "/id", "", errKeyInvalid, "a fraction could be another spelling of 12"},
		{`{"id":1e2}`, "/id", "", errKeyInvalid, "an exponent could be another spelling of 100"},
		{`{"id":true}`, "/id", "", errKeyInvalid, "a truth"},
		{`{"id":null}`, "/id", "", errKeyInvalid, "null is there"},
		{`{"id":{}}`, "/id", "", errKeyInvalid, "an object"},
		{`{"id":["a"]}`, "/id", "", errKeyInvalid, "an array"},
		{`{"id":""}`, "/id", "", errKeyInvalid, "empty text"},
		{`{"id":"schlüssel"}`, "/id", "", errKeyInvalid, "not ASCII"},
		{`{"id":"a\nb"}`, "/id", "", errKeyInvalid, "a line end"},
		{`{"id":"\ud800"}`, "/id", "", errKeyInvalid, "a lone surrogate"},
		{`{"id":"../x"}`, "/id", "", errKeyInvalid, "a parent directory"},
		{`{}`, "/id", "", errKeyMissing, "no such name"},
		{`{"ID":"a"}`, "/id", "", errKeyMissing, "case counts"},
		{`[]`, "/id", "", errKeyMissing, "an array has no names"},
		{`"id"`, "/id", "", errKeyMissing, "text has no names"},
		{`{"data":["a"]}`, "/data/1", "", errKeyMissing, "behind the last element"},
		{`{"data":["a","b"]}`, "/data/01", "", errKeyMissing, "01 is no index"},
		{`{"data":["a"]}`, "/data/-", "", errKeyMissing, "- is the element behind the last"},
		{`{"data":["a"]}`, "/data/+0", "", errKeyMissing, "a sign is no part of an index"},
		{`{"id":"a","id":"b"}`, "/id", "", errKeyInvalid, "two, and readers differ in which they take"},
		{`{"id":"a","id":"a"}`, "/id", "", errKeyInvalid, "two, equal or not"},
		{`{"id":"a","\u0069d":"b"}`, "/id", "", errKeyInvalid, "two, spelled differently"},
		{`{"data":{"id":"a"},"data":{}}`, "/data/id", "", errKeyInvalid, "two on the way"},
		{`{"id":"a","x":1,"x":2,"y":"\ud83d"}`, "/id", "a", nil, "what is ambiguous elsewhere does not matter"},
	} {
		if !json.Valid([]byte(row.document)) {
			t.Fatalf("%s is no document", row.document)
		}
		key, err := pointedKey([]byte(row.document), row.pointer)
		if err == nil && key != row.key || !errors.Is(err, row.err) {
			t.Errorf("%s at %s: got %q, %v: %s", row.document, row.pointer, key, err, row.reason)
		}
	}
}

// FuzzPointedKey: a key is printable ASCII, and another spelling of the document has the same one.
func FuzzPointedKey(f *testing.F) {
	for _, seed := range []string{`{"id":"a"}`, `{"id":12}`, `{"x":1,"id":"=="}`, `{"id":"a","id":"b"}`, `[{"id":1}]`, `{"id":"\ud800"}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, document string) {
		if !json.Valid([]byte(document)) {
			return
		}
		key, err := pointedKey([]byte(document), "/id")
		if err != nil {
			if !errors.Is(err, errKeyInvalid) && !errors.Is(err, errKeyMissing) {
				t.Fatalf("%q: %v", document, err)
			}
			return
		}
		if strings.Trim(key, " !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~") != "" || key == "" {
			t.Fatalf("%q: key %q", document, key)
		}
		canonical, ok := canonicalJSON([]byte(document), nil)
		if !ok {
			return
		}
		if again, err := pointedKey(canonical, "/id"); err != nil || again != key {
			t.Fatalf("%q has key %q, and %q has %q, %v", document, key, canonical, again, err)
		}
	})
}
