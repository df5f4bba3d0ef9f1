// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Source and id make an event the one it is: https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md#required-attributes
const (
	headerEventSource = "Ce-Source"
	headerEventID     = "Ce-Id"
)

const structuredEvent = "application/cloudevents"

// isStructured is for events that are in the body, whatever their format, and for batches of them:
// https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md#3-http-message-mapping
func isStructured(header http.Header) bool {
	return slices.ContainsFunc(header["Content-Type"], func(line string) bool {
		return strings.HasPrefix(strings.ToLower(strings.TrimSpace(line)), structuredEvent)
	})
}

// binaryEventKey is the key of an event in binary mode.
func binaryEventKey(header http.Header) (string, error) {
	source, id, err := eventInHeader(header)
	if err != nil {
		return "", err
	}
	return eventKey(source, id)
}

func eventInHeader(header http.Header) (source, id string, err error) {
	if source, err = eventAttribute(header, headerEventSource); err != nil {
		return "", "", err
	}
	id, err = eventAttribute(header, headerEventID)
	return source, id, err
}

func eventAttribute(header http.Header, name string) (string, error) {
	lines := header[name]
	switch len(lines) {
	case 0:
		return "", fmt.Errorf("%w: an event has %s and %s", errKeyMissing, headerEventSource, headerEventID)
	case 1:
	default:
		return "", fmt.Errorf("%w: %s is there more than once", errKeyInvalid, name)
	}
	text, err := decodeAttribute(strings.Trim(lines[0], " \t"))
	if err != nil {
		return "", fmt.Errorf("%w: %s %w", errKeyInvalid, name, err)
	}
	return text, checkAttribute(name, text)
}

var (
	errAttributeQuotes  = errors.New("has an open quote")
	errAttributePercent = errors.New("is not percent-encoded UTF-8")
)

// decodeAttribute takes a field value's quotes, then one round of percent-encoding, away:
// https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md#3132-http-header-values
func decodeAttribute(value string) (string, error) {
	var plain strings.Builder
	quoted := false
	for i := 0; i < len(value); i++ {
		switch {
		case value[i] == '"':
			quoted = !quoted
			continue
		case quoted && value[i] == '\\' && i+1 < len(value):
			i++
		}
		plain.WriteByte(value[i])
	}
	if quoted {
		return "", errAttributeQuotes
	}
	text, err := url.PathUnescape(plain.String())
	if err != nil || !utf8.ValidString(text) {
		return "", errAttributePercent
	}
	return text, nil
}

// checkAttribute is what holds for the text of an attribute: https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md#type-system
func checkAttribute(name, text string) error {
	if text == "" {
		return fmt.Errorf("%w: %s is empty", errKeyInvalid, name)
	}
	if strings.ContainsFunc(text, unicode.IsControl) {
		return fmt.Errorf("%w: %s holds a control character", errKeyInvalid, name)
	}
	return nil
}

// structuredEventKey is the key of an event whose attributes are in the body. A copy of them in the header is allowed and has to say the same:
// https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md#323-metadata-headers
func structuredEventKey(header http.Header, document []byte) (string, error) {
	source, err := memberAttribute(document, "source")
	if err != nil {
		return "", err
	}
	id, err := memberAttribute(document, "id")
	if err != nil {
		return "", err
	}
	if len(header[headerEventSource])+len(header[headerEventID]) > 0 {
		otherSource, otherID, err := eventInHeader(header)
		if err != nil {
			return "", err
		}
		if otherSource != source || otherID != id {
			return "", fmt.Errorf("%w: the header and the body are of two different events", errKeyInvalid)
		}
	}
	return eventKey(source, id)
}

func memberAttribute(document []byte, name string) (string, error) {
	value, err := lookUp(document, "/"+name)
	if err != nil {
		return "", err
	}
	if value[0] != '"' {
		return "", fmt.Errorf("%w: %s of the event is not a string", errKeyInvalid, name)
	}
	text, ok := unquote(value)
	if !ok {
		return "", fmt.Errorf("%w: %s of the event is no text", errKeyInvalid, name)
	}
	return text, checkAttribute(name, text)
}

// checkEvent refuses what is structured in a way in which nobody here can find the event.
func checkEvent(header http.Header) error {
	mediaType, json := mediaTypeOf(header)
	mediaType = strings.ToLower(mediaType)
	if strings.HasPrefix(mediaType, structuredEvent+"-batch") {
		return fmt.Errorf("%w: a batch holds many events, each with a key of its own; send them one by one", errKeyInvalid)
	}
	base, _, _ := strings.Cut(mediaType, ";")
	if base != structuredEvent+"+json" || !json {
		return fmt.Errorf("%w: of structured events only %s+json, in UTF-8, can be read", errKeyInvalid, structuredEvent)
	}
	return nil
}

// eventKey is source and id, each spelled as in a header, where no space is, and a space between them.
func eventKey(source, id string) (string, error) {
	key := encodeAttribute(source) + " " + encodeAttribute(id)
	return key, checkText(key)
}

// encodeAttribute percent-encodes what a header of an event must have percent-encoded, and nothing else.
func encodeAttribute(text string) string {
	const hex = "0123456789ABCDEF"
	var out strings.Builder
	for i := range len(text) {
		if b := text[i]; b > ' ' && b <= '~' && b != '"' && b != '%' {
			out.WriteByte(b)
		} else {
			out.Write([]byte{'%', hex[b>>4], hex[b&15]})
		}
	}
	return out.String()
}
