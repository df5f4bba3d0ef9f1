// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"time"
)

// Limits bound what requests may take from the sidecar. Every field is positive.
type Limits struct {
	// HeaderBytes of a request's line and header together, to within the 4 KiB that net/http reads at a time; more is 431.
	HeaderBytes int
	// BodyMemoryBytes of a request's body held in memory; the rest goes to a file.
	BodyMemoryBytes int64
	// BodyBytes of a request's body; more is 413.
	BodyBytes int64
	// SpillBytes of all bodies in files together; more is 503.
	SpillBytes int64
	// MemoryBytes of all bodies in memory together, of requests and answers. A request's body then goes to a file, and an answer streams to the
	// first caller and is recorded without its body.
	MemoryBytes int64
	// InFlight enforced requests at once; more is 503.
	InFlight int
	// Waiters for requests in flight, at once; more are answered 409 at once.
	Waiters int
	// JournalBytes of results that the store has not taken yet; while there are more, enforced requests are refused with 503.
	JournalBytes int64
	// ClientTimeout is how long a client may take to send its header; its body, with a second more for every 8 KiB; and to take each part of its
	// answer.
	ClientTimeout time.Duration
	// IdleTimeout of a connection between requests.
	IdleTimeout time.Duration
	// StoreTimeout of one call to the store.
	StoreTimeout time.Duration
	// Lease is how long this process counts as alive after it last said so. It says so three times as often.
	Lease time.Duration
}

// DefaultLimits fit a container of 256 MiB.
func DefaultLimits() Limits {
	return Limits{
		HeaderBytes:     64 << 10,
		BodyMemoryBytes: 256 << 10,
		BodyBytes:       32 << 20,
		SpillBytes:      512 << 20,
		MemoryBytes:     64 << 20,
		InFlight:        1024,
		Waiters:         256,
		JournalBytes:    64 << 20,
		ClientTimeout:   30 * time.Second,
		IdleTimeout:     2 * time.Minute,
		StoreTimeout:    3 * time.Second,
		Lease:           15 * time.Second,
	}
}

// Validate fails for the first field that is not positive or does not fit another one.
func (l Limits) Validate() error {
	for _, limit := range []struct {
		name  string
		value int64
	}{
		{"header-bytes", int64(l.HeaderBytes)},
		{"body-memory-bytes", l.BodyMemoryBytes},
		{"body-bytes", l.BodyBytes},
		{"spill-bytes", l.SpillBytes},
		{"memory-bytes", l.MemoryBytes},
		{"in-flight", int64(l.InFlight)},
		{"waiters", int64(l.Waiters)},
		{"journal-bytes", l.JournalBytes},
		{"client-timeout", int64(l.ClientTimeout)},
		{"idle-timeout", int64(l.IdleTimeout)},
		{"store-timeout", int64(l.StoreTimeout)},
		{"lease", int64(l.Lease)},
	} {
		if limit.value <= 0 {
			return fmt.Errorf("check limit %s: %d is not positive", limit.name, limit.value)
		}
	}
	if l.StoreTimeout >= l.Lease {
		return fmt.Errorf("check limit store-timeout: %s is not shorter than the lease of %s", l.StoreTimeout, l.Lease)
	}
	return nil
}
