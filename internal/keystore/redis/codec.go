// SPDX-License-Identifier: Apache-2.0

package redis

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
)

var errReply = errors.New("the server's answer has an unknown form")

// decode reads what reserve.lua returns, and whether a lease began.
func decode(value any) (d keystore.Decision, renewed bool, err error) {
	row, _ := value.([]any)
	if len(row) == 0 {
		return d, false, errReply
	}
	outcome, _ := row[0].(int64)
	d.Outcome = keystore.Outcome(outcome)
	texts := make([]string, 4)
	for i, field := range row[1:] {
		texts[min(i, 3)], _ = field.(string)
	}
	switch {
	case d.Outcome == keystore.Mismatch:
	case (d.Outcome == keystore.New || d.Outcome == keystore.TakenOver) && len(row) == 3 && len(texts[0]) == len(d.Seed):
		copy(d.Seed[:], texts[0])
		renewed = row[2] == int64(1)
	case d.Outcome == keystore.Completed && len(row) == 5:
		d.Answer, err = decodeAnswer(texts)
	case d.Outcome == keystore.InFlight && len(row) == 3:
		d.LeaseRemaining, err = microseconds(texts[0])
		if err == nil {
			d.Since, err = microseconds(texts[1])
		}
	case d.Outcome == keystore.Unknown && len(row) == 2:
		d.Since, err = microseconds(texts[0])
	default:
		err = errReply
	}
	return d, renewed, err
}

func microseconds(text string) (time.Duration, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, errReply
	}
	return time.Duration(n) * time.Microsecond, nil
}

// decodeAnswer reads tombstone, status, header and body.
func decodeAnswer(texts []string) (*keystore.Answer, error) {
	status, err := strconv.Atoi(texts[1])
	if err != nil {
		return nil, errReply
	}
	header, err := decodeHeader(texts[2])
	if err != nil {
		return nil, err
	}
	return &keystore.Answer{Tombstone: keystore.Tombstone(texts[0]), Status: status, Header: header, Body: []byte(texts[3])}, nil
}

// encodeHeader writes h as JSON. Field values are bytes, not text, so they are in base64.
func encodeHeader(h map[string][]string) ([]byte, error) {
	if len(h) == 0 {
		return []byte{}, nil
	}
	encoded := make(map[string][][]byte, len(h))
	for name, values := range h {
		for _, value := range values {
			encoded[name] = append(encoded[name], []byte(value))
		}
	}
	out, err := json.Marshal(encoded)
	if err != nil {
		return nil, fmt.Errorf("encode header: %w", err)
	}
	return out, nil
}

func decodeHeader(text string) (map[string][]string, error) {
	if text == "" {
		return nil, nil
	}
	var encoded map[string][][]byte
	if err := json.Unmarshal([]byte(text), &encoded); err != nil {
		return nil, fmt.Errorf("decode header: %w", err)
	}
	h := make(map[string][]string, len(encoded))
	for name, values := range encoded {
		for _, value := range values {
			h[name] = append(h[name], string(value))
		}
	}
	return h, nil
}
