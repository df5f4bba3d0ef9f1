// SPDX-License-Identifier: Apache-2.0

package proxyconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// File is the name of the document in its ConfigMap and in the directory where the sidecar finds it.
const File = "config.json"

// Encode writes c, which must be valid, as indented JSON. Equal configurations give equal bytes.
func Encode(c Config) ([]byte, error) {
	if err := Validate(c); err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(c); err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	return out.Bytes(), nil
}

// Decode reads one valid document and nothing else: an unknown field, another version, a bad value or text behind the document is an error
// that says what is wrong and where.
func Decode(document []byte) (Config, error) {
	var c Config
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		// A newer document has fields that this program does not know: its version is the better message.
		var head struct{ Version int }
		if json.Unmarshal(document, &head) == nil && head.Version != Version {
			err = versionError(head.Version)
		}
		return Config{}, fmt.Errorf("decode configuration: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Config{}, errors.New("decode configuration: text follows the document")
	}
	if err := Validate(c); err != nil {
		return Config{}, fmt.Errorf("decode configuration: %w", err)
	}
	return c, nil
}

func versionError(got int) error {
	return fmt.Errorf("version: %d is not supported, this program reads version %d", got, Version)
}
