// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// encodeHeader writes h as a JSON object of lists. Field values are bytes, not text: each byte becomes the character of its number, so that
// any value survives and ASCII stays readable.
func encodeHeader(h http.Header) ([]byte, error) {
	if len(h) == 0 {
		return nil, nil
	}
	encoded := make(map[string][]string, len(h))
	for name, values := range h {
		texts := make([]string, len(values))
		for i, value := range values {
			texts[i] = widen(value)
		}
		encoded[name] = texts
	}
	out, err := json.Marshal(encoded)
	if err != nil {
		return nil, fmt.Errorf("encode header: %w", err)
	}
	return out, nil
}

func decodeHeader(b []byte) (http.Header, error) {
	if len(b) == 0 {
		return nil, nil
	}
	var h http.Header
	if err := json.Unmarshal(b, &h); err != nil {
		return nil, fmt.Errorf("decode header: %w", err)
	}
	for name, values := range h {
		for i, value := range values {
			narrowed, err := narrow(value)
			if err != nil {
				return nil, fmt.Errorf("decode header %s: %w", name, err)
			}
			values[i] = narrowed
		}
	}
	return h, nil
}

func widen(value string) string {
	runes := make([]rune, len(value))
	for i := range len(value) {
		runes[i] = rune(value[i])
	}
	return string(runes)
}

func narrow(text string) (string, error) {
	value := make([]byte, 0, len(text))
	for _, r := range text {
		if r > 0xff {
			return "", fmt.Errorf("character %U is no byte", r)
		}
		value = append(value, byte(r))
	}
	return string(value), nil
}
