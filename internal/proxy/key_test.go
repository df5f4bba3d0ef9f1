// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/dunglas/httpsfv"
)

func TestKey(t *testing.T) {
	long := strings.Repeat("a", 255)
	for _, row := range []struct {
		lines  []string
		key    string
		err    error
		reason string
	}{
		{[]string{"abc"}, "abc", nil, "bare text"},
		{[]string{`"abc"`}, "abc", nil, "an RFC 9651 string is the same key"},
		{[]string{`"abc";x=1;y`}, "abc", nil, "parameters are ignored"},
		{[]string{` abc	`}, "abc", nil, "white space around a field is not part of it"},
		{[]string{`"a\"b\\c"`}, `a"b\c`, nil, "escapes of a string"},
		{[]string{"ABC"}, "ABC", nil, "case counts"},
		{[]string{"a b/c+d=:~"}, "a b/c+d=:~", nil, "printable ASCII"},
		{[]string{`"a,b"`}, "a,b", nil, "a comma within quotes"},
		{[]string{long}, long, nil, "as long as it may be"},
		{nil, "", errKeyMissing, "no field"},
		{[]string{"abc", "abc"}, "", errKeyInvalid, "two field lines, equal or not"},
		{[]string{"a, b"}, "", errKeyInvalid, "a list"},
		{[]string{`"a", "b"`}, "", errKeyInvalid, "a list of strings"},
		{[]string{""}, "", errKeyInvalid, "empty"},
		{[]string{`""`}, "", errKeyInvalid, "an empty string"},
		{[]string{`  `}, "", errKeyInvalid, "nothing but white space"},
		{[]string{long + "a"}, "", errKeyInvalid, "one too long"},
		{[]string{`"` + long + `a"`}, "", errKeyInvalid, "one too long without its quotes"},
		{[]string{strings.Repeat("a", 10_000)}, "", errKeyInvalid, "far too long"},
		{[]string{`"abc`}, "", errKeyInvalid, "an open quote"},
		{[]string{`abc"`}, "", errKeyInvalid, "a quote at the end only"},
		{[]string{`"abc" d`}, "", errKeyInvalid, "text behind the string"},
		{[]string{`"a\nb"`}, "", errKeyInvalid, "no escape of RFC 9651"},
		{[]string{"a\x00b"}, "", errKeyInvalid, "a control character"},
		{[]string{"a\r\nX: y"}, "", errKeyInvalid, "a line end"},
		{[]string{"schlüssel"}, "", errKeyInvalid, "not ASCII"},
		{[]string{"../../etc/passwd"}, "", errKeyInvalid, "a parent directory"},
		{[]string{`..\x`}, "", errKeyInvalid, "a parent directory, elsewhere"},
		{[]string{"a%00b"}, "", errKeyInvalid, "an encoded NUL"},
		{[]string{"a%0d%0ab"}, "", errKeyInvalid, "an encoded line end"},
		{[]string{"1..2"}, "1..2", nil, "dots that are no directory"},
	} {
		rt := newRoute(sampleRoute())
		key, err := rt.keyInHeader(&http.Request{Header: http.Header{"Idempotency-Key": row.lines}})
		if key != row.key || !errors.Is(err, row.err) {
			t.Errorf("%.40q: got %q, %v: %s", row.lines, key, err, row.reason)
		}
	}
}

func TestKeyPatternIsForTheWholeKey(t *testing.T) {
	config := sampleRoute()
	config.KeyPattern = "[0-9]+|x"
	rt := newRoute(config)
	for key, ok := range map[string]bool{"12": true, "x": true, "12a": false, "ax": false, "1x": false} {
		if _, err := rt.keyInHeader(&http.Request{Header: http.Header{"Idempotency-Key": {key}}}); (err == nil) != ok {
			t.Errorf("%q: %v", key, err)
		}
	}
}

func FuzzKey(f *testing.F) {
	for _, seed := range []string{"abc", `"abc"`, `"a\"b";x=1`, "a, b", "", `"`, "a\x00", "../a", "%0d", " x "} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		key, err := parseKey(line)
		if err != nil {
			if key != "" || !errors.Is(err, errKeyInvalid) {
				t.Fatalf("%q: key %q with error %v", line, key, err)
			}
			return
		}
		for i := range len(key) {
			if key[i] < ' ' || key[i] > '~' {
				t.Fatalf("%q: key %q is not printable ASCII", line, key)
			}
		}
		quoted, err := httpsfv.Marshal(httpsfv.NewItem(key))
		if err != nil {
			t.Fatal(err)
		}
		if again, err := parseKey(quoted); err != nil || again != key {
			t.Fatalf("%q is key %q, and quoted %q, %v", line, key, again, err)
		}
	})
}

func TestEchoIsSafeAndBounded(t *testing.T) {
	for in, want := range map[string]string{
		"abc":                     "abc",
		"<script>\"'&`":           "?script?????",
		"a\r\n\x1b[31m\x00é":      "a???[31m??",
		strings.Repeat("a", 64):   strings.Repeat("a", 64),
		strings.Repeat("a", 65):   strings.Repeat("a", 64) + "...",
		strings.Repeat("é", 1000): strings.Repeat("?", 64) + "...",
	} {
		if got := echo(in); got != want {
			t.Errorf("%q: got %q", in, got)
		}
	}
}
