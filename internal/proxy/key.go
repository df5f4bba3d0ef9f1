// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/dunglas/httpsfv"
)

// hasKey reports whether r has the route's key header at all.
func (rt *route) hasKey(r *http.Request) bool { return len(r.Header[rt.KeyHeader]) > 0 }

// key is the request's key: errKeyMissing or errKeyInvalid when it has none, or none that holds.
func (rt *route) key(r *http.Request) (string, error) {
	lines := r.Header[rt.KeyHeader]
	switch len(lines) {
	case 0:
		return "", fmt.Errorf("%w: send it in %s", errKeyMissing, rt.KeyHeader)
	case 1:
	default:
		return "", fmt.Errorf("%w: %s is there more than once", errKeyInvalid, rt.KeyHeader)
	}
	key, err := parseKey(lines[0])
	if err != nil {
		return "", err
	}
	if len(key) > rt.KeyMaxLength {
		return "", fmt.Errorf("%w: it is longer than %d bytes", errKeyInvalid, rt.KeyMaxLength)
	}
	if rt.pattern != nil && !rt.pattern.MatchString(key) {
		return "", fmt.Errorf("%w: it does not match %s", errKeyInvalid, rt.KeyPattern)
	}
	return key, nil
}

// parseKey reads a field value: an RFC 9651 string, its parameters ignored, or the bare text that most clients send. "abc" and abc are one key.
func parseKey(line string) (string, error) {
	line = strings.Trim(line, " \t")
	key := line
	if strings.HasPrefix(line, `"`) {
		item, err := httpsfv.UnmarshalItem([]string{line})
		text, ok := item.Value.(string)
		if err != nil || !ok {
			return "", fmt.Errorf("%w: it begins with a quote and is no quoted string", errKeyInvalid)
		}
		key = text
	} else if strings.ContainsAny(line, `,"`) {
		return "", fmt.Errorf("%w: a list, or a quote within; write it in quotes", errKeyInvalid)
	}
	if key == "" {
		return "", fmt.Errorf("%w: it is empty", errKeyInvalid)
	}
	for i := range len(key) {
		if key[i] < ' ' || key[i] > '~' {
			return "", fmt.Errorf("%w: it holds more than printable ASCII", errKeyInvalid)
		}
	}
	if hostile.MatchString(key) {
		return "", fmt.Errorf("%w: it holds a path's parent or an encoded control character", errKeyInvalid)
	}
	return key, nil
}

// hostile is what no honest client puts into a key and what harms whoever decodes one, or makes a path of it, further on.
var hostile = regexp.MustCompile(`(?i)(^|[/\\])\.\.([/\\]|$)|%[01][0-9a-f]|%7f`)
