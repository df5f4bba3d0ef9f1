// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// keyDocument is the JSON document in a body, whatever its media type says: not all senders of webhooks name the right one.
func keyDocument(header http.Header, body *spooled) ([]byte, error) {
	if len(header["Content-Encoding"]) > 0 {
		return nil, fmt.Errorf("%w: the body is encoded (Content-Encoding), so that it is not in sight", errKeyInvalid)
	}
	document, ok := body.bytes(canonicalBytes)
	if !ok {
		return nil, fmt.Errorf("%w: at most %d bytes where the key is in the body", errBodyTooLarge, canonicalBytes)
	}
	if len(bytes.TrimSpace(document)) == 0 {
		return nil, fmt.Errorf("%w: it is in the body, which is empty", errKeyMissing)
	}
	if !utf8.Valid(document) || !json.Valid(document) {
		return nil, fmt.Errorf("%w: it is in the body, which is not JSON in UTF-8", errKeyInvalid)
	}
	return document, nil
}

// integer is a number that has one spelling.
var integer = regexp.MustCompile(`^(0|-?[1-9][0-9]*)$`)

// pointedKey is the string or integer at pointer. 1 is not "1": the key of an integer begins with =, and that of a string that does, with two.
func pointedKey(document []byte, pointer string) (string, error) {
	value, err := lookUp(document, pointer)
	if err != nil {
		return "", err
	}
	switch {
	case value[0] == '"':
		text, ok := unquote(value)
		if !ok {
			return "", fmt.Errorf("%w: %s in the body is no text", errKeyInvalid, pointer)
		}
		if strings.HasPrefix(text, "=") {
			text = "=" + text
		}
		return text, checkText(text)
	case integer.Match(value):
		return "=" + string(value), nil
	case value[0] == '-' || value[0] >= '0' && value[0] <= '9':
		return "", fmt.Errorf("%w: %s in the body is a number with a fraction, an exponent or a needless sign", errKeyInvalid, pointer)
	}
	return "", fmt.Errorf("%w: %s in the body is neither a string nor a number", errKeyInvalid, pointer)
}

// unquote is the text of a JSON string; false for a lone surrogate, which is no character.
func unquote(value []byte) (string, bool) {
	text, ok := (&canonicalizer{in: value}).text()
	return string(text), ok
}

// lookUp is the value at an RFC 6901 pointer in a valid document: errKeyMissing when there is none, and errKeyInvalid when readers could find another
// one, since a name on the way is there twice.
func lookUp(document []byte, pointer string) (json.RawMessage, error) {
	value := json.RawMessage(document)
	for _, token := range strings.Split(pointer, "/")[1:] {
		token = pointerUnescaper.Replace(token)
		value = bytes.TrimLeft(value, " \t\r\n")
		var found []json.RawMessage
		switch value[0] {
		case '{':
			found = members(value, token)
		case '[':
			found = elements(value, token)
		}
		switch len(found) {
		case 0:
			return nil, fmt.Errorf("%w: it is not at %s in the body", errKeyMissing, pointer)
		case 1:
			value = found[0]
		default:
			return nil, fmt.Errorf("%w: a name on the way to %s is in the body more than once", errKeyInvalid, pointer)
		}
	}
	return bytes.TrimSpace(value), nil
}

var pointerUnescaper = strings.NewReplacer("~1", "/", "~0", "~") // one pass, so that ~01 is ~1: https://www.rfc-editor.org/rfc/rfc6901#section-4

// members are the values of that name in an object.
func members(object json.RawMessage, name string) (found []json.RawMessage) {
	decoder := json.NewDecoder(bytes.NewReader(object))
	_, _ = decoder.Token() // the brace; the document is valid
	for decoder.More() {
		token, _ := decoder.Token()
		var value json.RawMessage
		if decoder.Decode(&value) != nil {
			return nil
		}
		if token == name {
			found = append(found, value)
		}
	}
	return found
}

// elements is the element at that index of an array, if there is one.
func elements(array json.RawMessage, index string) (found []json.RawMessage) {
	at, err := strconv.Atoi(index)
	if err != nil || strconv.Itoa(at) != index {
		return nil // 01 and - name none: https://www.rfc-editor.org/rfc/rfc6901#section-4
	}
	decoder := json.NewDecoder(bytes.NewReader(array))
	_, _ = decoder.Token()
	for i := 0; decoder.More(); i++ {
		var value json.RawMessage
		if decoder.Decode(&value) != nil {
			return nil
		}
		if i == at {
			return []json.RawMessage{value}
		}
	}
	return nil
}
