// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// canonicalJSON spells a document in the one way that RFC 8785 gives it, but keeps the text of numbers: a number that a float64 cannot hold stays
// another number. Values at the pointers (RFC 6901) of ignored are left out. It reports false for what is no JSON document, or none that every
// reader understands alike: duplicate names, invalid UTF-8, lone surrogates; nor
// for one that is nested deeper than maxDepth.
func canonicalJSON(document []byte, ignored map[string]bool) ([]byte, bool) {
	if !utf8.Valid(document) || !json.Valid(document) {
		return nil, false
	}
	c := canonicalizer{in: document, ignored: ignored}
	out, ok := c.value(make([]byte, 0, len(document)), "")
	if !ok {
		return nil, false
	}
	return out, true
}

// maxDepth of a document: every level of objects that are not in order copies what it holds once more.
const maxDepth = 128

// canonicalizer reads a document that is known to be valid.
type canonicalizer struct {
	in      []byte
	at      int
	depth   int
	ignored map[string]bool
}

// peek is the next byte that is no white space.
func (c *canonicalizer) peek() byte {
	for {
		switch b := c.in[c.at]; b {
		case ' ', '\t', '\r', '\n':
			c.at++
		default:
			return b
		}
	}
}

func (c *canonicalizer) value(out []byte, pointer string) ([]byte, bool) {
	c.depth++
	defer func() { c.depth-- }()
	if c.depth > maxDepth {
		return nil, false
	}
	switch c.peek() {
	case '{':
		return c.object(out, pointer)
	case '[':
		return c.array(out, pointer)
	case '"':
		text, ok := c.text()
		return appendQuoted(out, text), ok
	default:
		start := c.at
		for c.at < len(c.in) && strings.IndexByte(" \t\r\n,]}", c.in[c.at]) < 0 {
			c.at++
		}
		return append(out, c.in[start:c.at]...), true
	}
}

func (c *canonicalizer) array(out []byte, pointer string) ([]byte, bool) {
	c.at++
	out = append(out, '[')
	first := true
	for i := 0; c.peek() != ']'; i++ {
		if c.in[c.at] == ',' {
			c.at++
		}
		at := c.child(pointer, strconv.Itoa(i))
		mark := len(out)
		if !first {
			out = append(out, ',')
		}
		var ok bool
		if out, ok = c.value(out, at); !ok {
			return nil, false
		}
		if c.ignored[at] {
			out = out[:mark]
			continue
		}
		first = false
	}
	c.at++
	return append(out, ']'), true
}

// member is one of an object: its name, and where it is written, a comma behind it. One that is ignored is written nowhere.
type member struct {
	name       []byte
	begin, end int
}

func (c *canonicalizer) object(out []byte, pointer string) ([]byte, bool) {
	c.at++
	out = append(out, '{')
	first := len(out)
	var members []member
	for c.peek() != '}' {
		if c.in[c.at] == ',' {
			c.at++
			c.peek()
		}
		name, ok := c.text()
		if !ok {
			return nil, false
		}
		c.peek()
		c.at++ // the colon
		at, begin := c.child(pointer, string(name)), len(out)
		if out, ok = c.value(append(appendQuoted(out, name), ':'), at); !ok {
			return nil, false
		}
		if c.ignored[at] {
			out = out[:begin]
		} else {
			out = append(out, ',')
		}
		members = append(members, member{name, begin, len(out)})
	}
	c.at++
	if !sortMembers(out, first, members) {
		return nil, false
	}
	if len(out) > first {
		out = out[:len(out)-1] // the last comma
	}
	return append(out, '}'), true
}

// sortMembers puts what is written from first on in the order of names, and reports false when two are the same.
func sortMembers(out []byte, first int, members []member) bool {
	byName := func(a, b member) int { return compareNames(a.name, b.name) }
	if !slices.IsSortedFunc(members, byName) {
		slices.SortFunc(members, byName)
		written := bytes.Clone(out[first:])
		out = out[:first]
		for _, m := range members {
			out = append(out, written[m.begin-first:m.end-first]...)
		}
	}
	for i := range len(members) - 1 {
		if bytes.Equal(members[i].name, members[i+1].name) {
			return false
		}
	}
	return true
}

// compareNames goes by UTF-16 code units, of which those of characters beyond U+FFFF come before some others':
// https://www.rfc-editor.org/rfc/rfc8785#section-3.2.3
func compareNames(a, b []byte) int {
	for len(a) > 0 && len(b) > 0 {
		runeA, sizeA := utf8.DecodeRune(a)
		runeB, sizeB := utf8.DecodeRune(b)
		if runeA != runeB {
			return slices.Compare(utf16.AppendRune(nil, runeA), utf16.AppendRune(nil, runeB))
		}
		a, b = a[sizeA:], b[sizeB:]
	}
	return len(a) - len(b)
}

// child is the pointer to a member or element; "" when no pointer is ignored and none is needed.
func (c *canonicalizer) child(pointer, name string) string {
	if len(c.ignored) == 0 {
		return ""
	}
	return pointer + "/" + pointerEscaper.Replace(name)
}

var pointerEscaper = strings.NewReplacer("~", "~0", "/", "~1") // https://www.rfc-editor.org/rfc/rfc6901#section-3

// text reads a string and reports false for a lone surrogate in it. One without escapes is a part of the document.
func (c *canonicalizer) text() ([]byte, bool) {
	c.at++ // the quote
	start := c.at
	c.at += bytes.IndexAny(c.in[c.at:], `"\`)
	text := c.in[start:c.at:c.at]
	for {
		switch b := c.in[c.at]; b {
		case '"':
			c.at++
			return text, true
		case '\\':
			r, ok := c.escaped()
			if !ok {
				return nil, false
			}
			text = utf8.AppendRune(text, r)
		default:
			text = append(text, b)
			c.at++
		}
	}
}

// escaped reads one escape sequence, or the two of a surrogate pair.
func (c *canonicalizer) escaped() (rune, bool) {
	kind := c.in[c.at+1]
	c.at += 2
	if kind != 'u' {
		if i := strings.IndexByte("btnfr", kind); i >= 0 {
			return rune("\b\t\n\f\r"[i]), true
		}
		return rune(kind), true // a quote, a backslash or a slash
	}
	r := c.unit()
	if !utf16.IsSurrogate(r) {
		return r, true
	}
	if c.in[c.at] != '\\' || c.in[c.at+1] != 'u' {
		return 0, false
	}
	c.at += 2
	r = utf16.DecodeRune(r, c.unit())
	return r, r != utf8.RuneError
}

func (c *canonicalizer) unit() rune {
	unit, _ := strconv.ParseUint(string(c.in[c.at:c.at+4]), 16, 16) // valid, as the document is
	c.at += 4
	return rune(unit)
}

// appendQuoted escapes what it must and nothing else. https://www.rfc-editor.org/rfc/rfc8785#section-3.2.2.2
func appendQuoted(out, text []byte) []byte {
	const hex = "0123456789abcdef"
	out = append(out, '"')
	for _, b := range text {
		switch {
		case b == '"' || b == '\\':
			out = append(out, '\\', b)
		case b >= ' ':
			out = append(out, b)
		default:
			if j := strings.IndexByte("\b\t\n\f\r", b); j >= 0 {
				out = append(out, '\\', "btnfr"[j])
			} else {
				out = append(out, '\\', 'u', '0', '0', hex[b>>4], hex[b&15])
			}
		}
	}
	return append(out, '"')
}
