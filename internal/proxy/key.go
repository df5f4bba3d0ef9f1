// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/dunglas/httpsfv"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// keyFields are the header fields that hold a request's key, or parts of it.
func (rt *route) keyFields() []string {
	switch rt.KeySource {
	case "":
		return []string{rt.KeyHeader}
	case proxyconfig.KeyCloudEvent:
		return []string{headerEventSource, headerEventID}
	}
	return nil
}

// keyIsInBody reports whether r's key is known only when its body is.
func (rt *route) keyIsInBody(r *http.Request) bool {
	switch rt.KeySource {
	case proxyconfig.KeyJSONPointer, proxyconfig.KeyFingerprint:
		return true
	case proxyconfig.KeyCloudEvent:
		return isStructured(r.Header)
	}
	return false
}

// lacksKey reports whether r certainly has no key.
func (rt *route) lacksKey(r *http.Request) bool {
	return !rt.keyIsInBody(r) && !slices.ContainsFunc(rt.keyFields(), func(name string) bool { return len(r.Header[name]) > 0 })
}

// keyInHeader is the key of a request that has it there: errKeyMissing or errKeyInvalid when it has none, or none that holds.
func (rt *route) keyInHeader(r *http.Request) (key string, err error) {
	if rt.KeySource == proxyconfig.KeyCloudEvent {
		key, err = binaryEventKey(r.Header)
	} else {
		key, err = headerKey(r.Header, rt.KeyHeader)
	}
	if err == nil {
		err = rt.checkKey(key)
	}
	if err != nil {
		return "", err
	}
	return key, nil
}

// keyInBody is the key of a request that has it there, and the errors are those of keyInHeader; errBodyTooLarge when the body is larger than what is
// looked at.
func (rt *route) keyInBody(r *http.Request, body *spooled, fingerprint keystore.Fingerprint) (key string, err error) {
	if rt.KeySource == proxyconfig.KeyFingerprint {
		return hex.EncodeToString(fingerprint[:]), nil
	}
	document, err := keyDocument(r.Header, body)
	if err != nil {
		return "", err
	}
	if rt.KeySource == proxyconfig.KeyCloudEvent {
		key, err = structuredEventKey(r.Header, document)
	} else {
		key, err = pointedKey(document, rt.KeyPointer)
	}
	if err == nil {
		err = rt.checkKey(key)
	}
	if err != nil {
		return "", err
	}
	return key, nil
}

func headerKey(header http.Header, name string) (string, error) {
	lines := header[name]
	switch len(lines) {
	case 0:
		return "", fmt.Errorf("%w: send it in %s", errKeyMissing, name)
	case 1:
		return parseKey(lines[0])
	}
	return "", fmt.Errorf("%w: %s is there more than once", errKeyInvalid, name)
}

// checkKey is what the route asks of a key, wherever it is from.
func (rt *route) checkKey(key string) error {
	if len(key) > rt.KeyMaxLength {
		return fmt.Errorf("%w: it is longer than %d bytes", errKeyInvalid, rt.KeyMaxLength)
	}
	if rt.pattern != nil && !rt.pattern.MatchString(key) {
		return fmt.Errorf("%w: it does not match %s", errKeyInvalid, rt.KeyPattern)
	}
	return nil
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
	if err := checkText(key); err != nil {
		return "", err
	}
	return key, nil
}

// checkText is what holds for the text of every key.
func checkText(key string) error {
	if key == "" {
		return fmt.Errorf("%w: it is empty", errKeyInvalid)
	}
	for i := range len(key) {
		if key[i] < ' ' || key[i] > '~' {
			return fmt.Errorf("%w: it holds more than printable ASCII", errKeyInvalid)
		}
	}
	if hostile.MatchString(key) {
		return fmt.Errorf("%w: it holds a path's parent or an encoded control character", errKeyInvalid)
	}
	return nil
}

// hostile is what no honest client puts into a key and what harms whoever decodes one, or makes a path of it, further on.
var hostile = regexp.MustCompile(`(?i)(^|[/\\])\.\.([/\\]|$)|%[01][0-9a-f]|%7f`)

// keyHeader is for the question what became of a request: those of the request where its key is in them. An event's are as in binary mode; the key of
// another source is in Idempotency-Key.
func (x *exchange) keyHeader() http.Header {
	if x.route.KeyHeader != "" {
		return http.Header{x.route.KeyHeader: x.r.Header[x.route.KeyHeader]}
	}
	if source, id, ok := strings.Cut(x.key, " "); ok && x.route.KeySource == proxyconfig.KeyCloudEvent {
		return http.Header{headerEventSource: {source}, headerEventID: {id}}
	}
	return http.Header{"Idempotency-Key": {x.key}}
}
