// SPDX-License-Identifier: Apache-2.0

// Package keystore is the domain: entries, their states and the Store that keeps them.
//
// The guarantee of every Store, and what keystoretest checks:
//
//   - For one (keyspace, client, key) at most one caller at a time holds the right to execute. It is given by Reserve, as New or TakenOver,
//     together with the caller's own Token, and it ends by Complete, Release, MarkUnknown, a take-over or a settlement.
//   - Every transition is one compare-and-set on the owner's Token, decided by the server on the server's clock. A caller that lost the
//     reservation gets ErrNotOwner and has changed nothing.
//   - A reservation whose holder is alive is never given to another, however long it takes and whatever its window.
//   - A Reserve that is repeated with the same Token, because the answer to the first one was lost, gets the same answer.
//   - A completed entry is replayed as it was recorded, byte for byte, until its window ends, and its window is counted from completion.
//   - An entry whose window is over, and whose reservation no live holder keeps, is absent, for its former owner as well.
package keystore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/http"
	"time"
)

// Store keeps the entries of one keyspace. It is safe for concurrent use.
// Each method is one round trip to the server and one short transaction there. A method that returns ErrUnavailable may or may not have
// taken effect; it may be repeated with the same Token. Times are the server's.
type Store interface {
	// Reserve asks for the right to execute and reports what stands in the way.
	// It fails with ErrUnavailable only; a decision is never guessed.
	Reserve(ctx context.Context, r Reservation) (Decision, error)

	// Complete records the answer and starts the entry's window anew. Repeating it is harmless.
	// It fails with ErrNotOwner when the entry is not held with o.Token, and with ErrUnavailable.
	// An answer that is already recorded under o.Token, by an app in its own transaction, is kept: Complete then changes nothing and succeeds.
	Complete(ctx context.Context, o Ownership, answer Answer) error

	// Release ends an attempt that certainly had no effect, or whose answer is one that a retry should ask for again.
	// The entry is absent then, if the attempt was the first. If it had been TakenOver the entry is Unknown, and its window starts anew: what this
	// attempt did says nothing about the earlier one. Only a settlement makes that absent.
	// It fails with ErrNotOwner and ErrUnavailable. Releasing what is absent is ErrNotOwner; releasing a take-over again is harmless.
	Release(ctx context.Context, o Ownership) error

	// MarkUnknown says that the request may have taken effect and nobody can tell, and starts the entry's window anew. Repeating it is harmless.
	// Should the owner learn the answer after all, Complete with the same token still records it, unless somebody has taken over.
	// It fails with ErrNotOwner and ErrUnavailable.
	MarkUnknown(ctx context.Context, o Ownership) error

	// KeepAlive says that holder is alive for another lease. Reservations of a holder without a live lease are UNKNOWN.
	KeepAlive(ctx context.Context, holder Holder, lease time.Duration) error

	// Retire ends the lease of holder at once. Its open reservations are UNKNOWN from then on.
	Retire(ctx context.Context, holder Holder) error

	// Check reports whether the store can take reservations right now. It fails with ErrUnavailable.
	Check(ctx context.Context) error

	// Close gives back every connection.
	Close()
}

var (
	// ErrUnavailable: the store could not be reached, refused or timed out; whether the call took effect is not known.
	ErrUnavailable = errors.New("key store unavailable")
	// ErrNotOwner: the entry is not held with the caller's token. Nothing was changed.
	ErrNotOwner = errors.New("entry is not held with this token")
)

// Fingerprint is the SHA-256 of what makes two requests the same request.
type Fingerprint [32]byte

// Token is the owner's proof: 16 random bytes, made by the caller before it reserves.
type Token [16]byte

// NewToken makes a token from the system's random source.
func NewToken() Token {
	var t Token
	_, _ = rand.Read(t[:]) // never fails: crypto/rand aborts the program instead
	return t
}

// String is the token in 32 lower-case hexadecimal digits.
func (t Token) String() string { return hex.EncodeToString(t[:]) }

// Holder names one proxy process, from its start to its end: 16 random bytes.
type Holder [16]byte

// NewHolder makes the name of a new process.
func NewHolder() Holder { return Holder(NewToken()) }

// String is the holder in 32 lower-case hexadecimal digits.
func (h Holder) String() string { return hex.EncodeToString(h[:]) }

// Ownership names an entry and proves the right to change it.
type Ownership struct {
	Client string
	Key    string
	Token  Token
}

// Reservation is a request for the right to execute.
type Reservation struct {
	// Client is the verified sender, at most 512 bytes; Key its key, at most 255 bytes.
	Client string
	Key    string
	// Fingerprint of the request.
	Fingerprint Fingerprint
	// Token is the caller's own and new for every request it handles; repeated only when the answer to Reserve was lost.
	Token Token
	// Holder is the calling process and Lease how long it counts as alive from now, should it not have said so by KeepAlive before.
	// Whoever is given the reservation counts as alive for half of Lease at least, from this call on: a lease of which more is left is not renewed.
	Holder Holder
	Lease  time.Duration
	// Window is how long the entry is honoured, counted from reservation and again from completion.
	Window time.Duration
	// Route is the name of the route, for whoever has to settle the entry.
	Route string
	// TakeOver: an entry whose outcome is unknown is given to this caller, as TakenOver, rather than reported as Unknown. An attempt that has ended
	// is not begun again: with the Token that the entry was last reserved with, it stays Unknown.
	TakeOver bool
	// Repeated: the answer to an earlier Reserve with this Token was lost. That may still be under way, so that nothing is decided before it has ended.
	Repeated bool
}

// Outcome is what Reserve found.
type Outcome int

// The outcomes of Reserve. The zero Outcome is none of them.
const (
	// New: absent before; the caller holds the reservation now.
	New Outcome = iota + 1
	// TakenOver: the outcome of an earlier execution is unknown, and the caller holds the reservation now.
	TakenOver
	// Mismatch: the key stands for another request. It is decided before everything else, since no retry can succeed.
	Mismatch
	// Completed: the answer is recorded, in Decision.Answer.
	Completed
	// InFlight: a live holder is executing, or a transaction of the app, still open, has recorded the answer. Told in a moment, without waiting for it.
	InFlight
	// Unknown: an earlier execution may have taken effect.
	Unknown
)

// Decision is the answer to Reserve.
type Decision struct {
	Outcome Outcome
	// Seed is stable for the entry over every attempt: the name space of keys for calls to other services. Set for New and TakenOver.
	Seed [16]byte
	// Answer is set for Completed.
	Answer *Answer
	// LeaseRemaining is how long the holder counts as alive if it says nothing more. Set for InFlight; zero: the app's transaction decides, and an
	// earlier call with the same Token, whose answer was lost, may still be given the reservation.
	LeaseRemaining time.Duration
	// Since is how long ago, by the server, the entry was reserved. Set for InFlight and Unknown.
	Since time.Duration
}

// Answer is a recorded response, or a tombstone.
type Answer struct {
	// Tombstone, when not empty, says why the response cannot be replayed as it is here. Status is the response's; Header and Body are empty, but with
	// Sealed, and the header with Referenced.
	Tombstone Tombstone
	// Status is the HTTP status code.
	Status int
	// Header holds the recorded fields, by canonical name.
	Header http.Header
	// Body is the raw body, in whatever content encoding the response had.
	Body []byte
}

// Tombstone says why a response cannot be replayed as it was recorded.
type Tombstone string

// The reasons for a tombstone.
const (
	// TooLarge: the body was over the limit.
	TooLarge Tombstone = "TooLarge"
	// Streamed: the response was a stream.
	Streamed Tombstone = "Streamed"
	// Referenced: the body is left where Location in Header says, for the app to give it again.
	Referenced Tombstone = "Referenced"
	// Sealed: Header and Body are encrypted. Package sealed opens them; for everybody else the response was not kept.
	Sealed Tombstone = "Sealed"
	// Unreadable: the response is Sealed, and cannot be opened. It is never stored.
	Unreadable Tombstone = "Unreadable"
)
