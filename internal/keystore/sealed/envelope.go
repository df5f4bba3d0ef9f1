// SPDX-License-Identifier: Apache-2.0

package sealed

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/idempotency-dev/operator/internal/keystore"
)

const (
	// headerKey is the only field in the header of a sealed answer: the id of its key.
	headerKey = "Idempotency-Sealed"
	// whole, or reference for an answer that is Referenced, is the first byte of a sealed body: its version. What follows is the nonce, and then the
	// ciphertext with its tag.
	whole     = 1
	reference = 2
	// purpose keeps what is derived here apart from whatever else a key may be used for.
	purpose = "idempotency sealed answer v1"
)

var (
	// ErrKeyUnknown: the answer was sealed with a key that is not in the ring.
	ErrKeyUnknown = errors.New("its key is not in the key ring")
	// ErrDamaged: the answer was changed, or moved here from another entry, or its key's id now names another key.
	ErrDamaged = errors.New("it was changed, or does not belong to this entry, or its key is another one by now")
)

// place is an entry.
type place struct{ keyspace, client, key string }

// aead encrypts for one entry only: its key is derived from the ring's and the entry's name. So no answer opens at another entry, and nonces, which are
// random, would have to meet by chance within one entry, not among the billions of all: https://csrc.nist.gov/pubs/sp/800/38/d/final, section 8.3.
func (p place) aead(key []byte) (cipher.AEAD, error) {
	info := []byte(purpose)
	for _, part := range []string{p.keyspace, p.client, p.key} {
		info = binary.BigEndian.AppendUint64(info, uint64(len(part)))
		info = append(info, part...)
	}
	derived, err := hkdf.Expand(sha256.New, key, string(info), keyBytes)
	if err != nil {
		return nil, fmt.Errorf("derive key: %w", err)
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, fmt.Errorf("make cipher: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("make cipher: %w", err)
	}
	return aead, nil
}

// bound is what stays in clear beside the ciphertext and is authenticated with it.
func bound(version byte, status int) []byte {
	return strconv.AppendInt([]byte{version}, int64(status), 10)
}

// seal is answer as it is stored: a tombstone for whoever cannot open it, a sidecar of an older version included.
func (r *Ring) seal(p place, answer keystore.Answer) (keystore.Answer, error) {
	aead, err := p.aead(r.keys[r.active])
	if err != nil {
		return keystore.Answer{}, err
	}
	plain, err := encode(answer)
	if err != nil {
		return keystore.Answer{}, err
	}
	version := byte(whole)
	if answer.Tombstone == keystore.Referenced {
		version = reference
	}
	body := make([]byte, 1, 1+len(plain)+aead.Overhead())
	body[0] = version
	return keystore.Answer{
		Tombstone: keystore.Sealed,
		Status:    answer.Status,
		Header:    http.Header{headerKey: {r.active}},
		Body:      aead.Seal(body, nil, plain, bound(version, answer.Status)), //nolint:gosec // this AEAD makes its nonce itself, and wants none
	}, nil
}

// open is the answer that stored was made from. It fails with ErrKeyUnknown and ErrDamaged. A nil ring holds no key.
func (r *Ring) open(p place, stored keystore.Answer) (keystore.Answer, error) {
	if r == nil {
		return keystore.Answer{}, ErrKeyUnknown
	}
	key, known := r.keys[stored.Header.Get(headerKey)]
	if !known {
		return keystore.Answer{}, ErrKeyUnknown
	}
	if len(stored.Body) == 0 || stored.Body[0] != whole && stored.Body[0] != reference {
		return keystore.Answer{}, ErrDamaged
	}
	version := stored.Body[0]
	aead, err := p.aead(key)
	if err != nil {
		return keystore.Answer{}, err
	}
	plain, err := aead.Open(nil, nil, stored.Body[1:], bound(version, stored.Status))
	if err != nil {
		return keystore.Answer{}, ErrDamaged
	}
	answer, err := decode(stored.Status, plain)
	if err == nil && version == reference {
		answer.Tombstone = keystore.Referenced
	}
	return answer, err
}

// encode writes header and body: the length of the header, the header in JSON, and the body. Field values are bytes, not text, so they are in base64.
func encode(answer keystore.Answer) ([]byte, error) {
	fields := make(map[string][][]byte, len(answer.Header))
	for name, values := range answer.Header {
		for _, value := range values {
			fields[name] = append(fields[name], []byte(value))
		}
	}
	header, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("encode header: %w", err)
	}
	plain := make([]byte, 0, binary.MaxVarintLen64+len(header)+len(answer.Body))
	plain = binary.AppendUvarint(plain, uint64(len(header)))
	return append(append(plain, header...), answer.Body...), nil
}

func decode(status int, plain []byte) (keystore.Answer, error) {
	length, n := binary.Uvarint(plain)
	if n <= 0 || length > uint64(len(plain)-n) {
		return keystore.Answer{}, ErrDamaged
	}
	header, body := plain[n:n+int(length)], plain[n+int(length):]
	var fields map[string][][]byte
	if json.Unmarshal(header, &fields) != nil {
		return keystore.Answer{}, ErrDamaged
	}
	answer := keystore.Answer{Status: status, Header: make(http.Header, len(fields)), Body: body}
	for name, values := range fields {
		for _, value := range values {
			answer.Header[name] = append(answer.Header[name], string(value))
		}
	}
	return answer, nil
}
