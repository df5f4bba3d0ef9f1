// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
)

func TestBinaryEventKey(t *testing.T) {
	for _, row := range []struct {
		source, id []string
		key        string
		err        error
		reason     string
	}{
		{[]string{"/orders"}, []string{"1"}, "/orders 1", nil, "source and id"},
		{[]string{"/a"}, []string{"b c"}, "/a b%20c", nil, "a space is told from the one between them"},
		{[]string{"/a b"}, []string{"c"}, "/a%20b c", nil, "wherever it is"},
		{[]string{"/a"}, []string{"b%20c"}, "/a b%20c", nil, "percent-encoded or not"},
		{[]string{"/a"}, []string{`"b c"`}, "/a b%20c", nil, "in quotes, as earlier versions of the binding had it"},
		{[]string{"/a"}, []string{`"b\"c"`}, "/a b%22c", nil, "an escape within quotes"},
		{[]string{"/a"}, []string{"%41"}, "/a A", nil, "needless encoding has to be taken"},
		{[]string{"/a"}, []string{"b%2520c"}, "/a b%2520c", nil, "one round of decoding, not two"},
		{[]string{"/a"}, []string{"%c3%bc"}, "/a %C3%BC", nil, "Unicode, in either case of the digits"},
		{[]string{"/a"}, []string{"ü"}, "/a %C3%BC", nil, "Unicode as it is"},
		{[]string{" /a	"}, []string{"1"}, "/a 1", nil, "white space around a field is not part of it"},
		{[]string{"https://example.com/a,b"}, []string{"1,2"}, "https://example.com/a,b 1,2", nil, "a comma is no list"},
		{[]string{"/A"}, []string{"x"}, "/A x", nil, "case counts"},
		{nil, []string{"1"}, "", errKeyMissing, "no source"},
		{[]string{"/a"}, nil, "", errKeyMissing, "no id"},
		{[]string{"/a"}, []string{""}, "", errKeyInvalid, "an empty id"},
		{[]string{`""`}, []string{"1"}, "", errKeyInvalid, "an empty source, in quotes"},
		{[]string{"/a", "/a"}, []string{"1"}, "", errKeyInvalid, "two sources, equal or not"},
		{[]string{"/a"}, []string{"1", "2"}, "", errKeyInvalid, "two ids"},
		{[]string{"/a"}, []string{"%zz"}, "", errKeyInvalid, "not percent-encoded"},
		{[]string{"/a"}, []string{"%C0%A0"}, "", errKeyInvalid, "overlong UTF-8"},
		{[]string{"/a"}, []string{"%0A"}, "", errKeyInvalid, "a control character"},
		{[]string{"/a"}, []string{`"b`}, "", errKeyInvalid, "an open quote"},
		{[]string{"/a/../b"}, []string{"1"}, "", errKeyInvalid, "a parent directory"},
		{[]string{"/" + strings.Repeat("a", 252)}, []string{"1"}, "/" + strings.Repeat("a", 252) + " 1", nil, "as long as it may be together"},
		{[]string{"/" + strings.Repeat("a", 253)}, []string{"1"}, "", errKeyInvalid, "one longer"},
	} {
		config := sampleRoute()
		config.KeySource, config.KeyHeader = "CloudEvent", ""
		key, err := newRoute(config).keyInHeader(&http.Request{Header: http.Header{"Ce-Source": row.source, "Ce-Id": row.id}})
		if key != row.key || !errors.Is(err, row.err) {
			t.Errorf("%.40q %.40q: got %q, %v: %s", row.source, row.id, key, err, row.reason)
		}
	}
}

// FuzzEventKey: two events have one key only if they are one, and in both modes it is the same.
func FuzzEventKey(f *testing.F) {
	f.Add("/a", "b c", "/a b", "c")
	f.Add("/a", "%20", "/a%20", " ")
	f.Add("/a", "ü", "/a", "u\u0308")
	f.Fuzz(func(t *testing.T, source, id, otherSource, otherID string) {
		key, err := eventKey(source, id)
		other, otherErr := eventKey(otherSource, otherID)
		if err != nil || otherErr != nil || source == "" || id == "" {
			return
		}
		if same := source == otherSource && id == otherID; same != (key == other) {
			t.Fatalf("%q %q and %q %q: keys %q and %q", source, id, otherSource, otherID, key, other)
		}
		binary, err := binaryEventKey(http.Header{"Ce-Source": {encodeAttribute(source)}, "Ce-Id": {encodeAttribute(id)}})
		if errors.Is(err, errKeyInvalid) {
			return // control characters
		}
		document, _ := json.Marshal(map[string]string{"source": source, "id": id})
		structured, structuredErr := structuredEventKey(http.Header{}, document)
		if strings.ToValidUTF8(source+id, "") == source+id && (err != nil || structuredErr != nil || binary != key || structured != key) {
			t.Fatalf("%q %q: key %q, binary %q %v, structured %q %v", source, id, key, binary, err, structured, structuredErr)
		}
	})
}
