// SPDX-License-Identifier: Apache-2.0

package sealed

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
)

// keyBytes is the length of a key, that of AES-256.
const keyBytes = 32

var idForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// Ring is the keys that answers are sealed with: the active one for what is recorded from now on, and older ones to read what was. It never changes.
type Ring struct {
	active string
	keys   map[string][]byte // of keyBytes, by id
}

// ParseRing reads a key ring: on each line an id of 1 to 64 letters, digits, dots, underscores and hyphens, and after it 32 bytes in base64. The
// first key is the active one. Blank lines, and lines that begin with #, are left out. Errors name the line and never show anything of it.
func ParseRing(text []byte) (*Ring, error) {
	ring := &Ring{keys: map[string][]byte{}}
	seen := map[string]int{}
	number := 0
	for line := range bytes.Lines(text) {
		number++
		fields := bytes.Fields(line)
		if len(fields) == 0 || fields[0][0] == '#' {
			continue
		}
		id, key, err := parseKey(fields)
		if err != nil {
			return nil, fmt.Errorf("read key ring: line %d: %w", number, err)
		}
		if first, taken := seen[id]; taken {
			return nil, fmt.Errorf("read key ring: line %d: its id is that of line %d: give each key an id of its own", number, first)
		}
		if seen[id], ring.keys[id] = number, key; ring.active == "" {
			ring.active = id
		}
	}
	if ring.active == "" {
		return nil, errors.New("read key ring: it holds no key: write a line with an id and what `openssl rand -base64 32` prints")
	}
	return ring, nil
}

func parseKey(fields [][]byte) (id string, key []byte, err error) {
	if len(fields) != 2 {
		return "", nil, fmt.Errorf("want an id and a key, with a space between, and found %d words", len(fields))
	}
	if !idForm.Match(fields[0]) {
		return "", nil, errors.New("the id is not 1 to 64 of A-Z, a-z, 0-9, dot, underscore and hyphen")
	}
	key, err = base64.StdEncoding.Strict().DecodeString(string(fields[1]))
	if err != nil {
		return "", nil, errors.New("the key is not in base64: write what `openssl rand -base64 32` prints") // the cause would tell where, in the key
	}
	if len(key) != keyBytes {
		return "", nil, fmt.Errorf("the key has %d bytes, want %d: write what `openssl rand -base64 32` prints", len(key), keyBytes)
	}
	return string(fields[0]), key, nil
}
