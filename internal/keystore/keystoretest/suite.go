// SPDX-License-Identifier: Apache-2.0

// Package keystoretest is the conformance suite of keystore.Store: a behaviour that is not in it does not exist.
package keystoretest

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// Harness is an empty keyspace on a real server.
type Harness struct {
	// Addr is the TCP address of the server; those of a cluster's servers, separated by commas.
	Addr string
	// Open returns another Store on the keyspace, with connections of its own, that reaches the server at addr, which has the form and order of
	// Addr. The test's end closes it.
	Open func(t testing.TB, addr string) keystore.Store
	// SetClock stops the server's clock at now.
	SetClock func(t testing.TB, now time.Time)
}

// Start is what the server's clock shows when a test begins. The harness keeps entries for a week from then on; later entries have to be kept, too.
func Start() time.Time { return time.Date(2031, time.March, 30, 12, 0, 0, 0, time.UTC) }

// Run tests the Store that newHarness makes; each test asks for one of its own. only names the tests to run; none: all.
func Run(t *testing.T, newHarness func(t *testing.T) Harness, only ...string) {
	for _, test := range []struct {
		name string
		run  func(*bench)
	}{
		{"Life", life},
		{"Decisions", decisions},
		{"OwnersOnly", ownersOnly},
		{"OwnEarlierCall", ownEarlierCall},
		{"ReleasedTakeOverIsUnknown", releasedTakeOverIsUnknown},
		{"EndedAttemptIsNotBegunAgain", endedAttemptIsNotBegunAgain},
		{"AnswersByteForByte", answersByteForByte},
		{"AnswerIsKept", answerIsKept},
		{"Window", window},
		{"WindowStartsAnew", windowStartsAnew},
		{"ExpiredEntryIsAbsent", expiredEntryIsAbsent},
		{"Lease", lease},
		{"LiveHolderOutlastsWindow", liveHolderOutlastsWindow},
		{"TakeOverFencesStaleHolder", takeOverFencesStaleHolder},
		{"ScopeIsClientAndKey", scopeIsClientAndKey},
		{"Check", check},
		{"RaceOneKey", raceOneKey},
		{"RaceTakeOver", raceTakeOver},
		{"RaceMidnight", raceMidnight},
		{"RaceOwnership", raceOwnership},
		{"LostAnswers", lostAnswers},
		{"ServerAway", serverAway},
		{"CallersDeadline", callersDeadline},
		{"Model", model},
	} {
		if len(only) > 0 && !slices.Contains(only, test.name) {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			h := newHarness(t)
			b := &bench{T: t, Harness: h, now: Start(), holder: keystore.NewHolder()}
			h.SetClock(t, b.now)
			b.store = h.Open(t, h.Addr)
			test.run(b)
		})
	}
}

// bench is what a test works with: a store, the clock and one holder.
type bench struct {
	*testing.T
	Harness
	store  keystore.Store
	now    time.Time
	holder keystore.Holder
}

// leaseTime and windowTime are what tests use when nothing depends on it.
const (
	leaseTime  = 10 * time.Second
	windowTime = time.Hour
)

// advance moves the server's clock.
func (b *bench) advance(d time.Duration) {
	b.Helper()
	b.now = b.now.Add(d)
	b.SetClock(b.T, b.now)
}

// request is a reservation of key by the bench's holder.
func (b *bench) request(key string) keystore.Reservation {
	return keystore.Reservation{
		Client: "client", Key: key, Fingerprint: keystore.Fingerprint{1}, Token: keystore.NewToken(), Holder: b.holder, Lease: leaseTime,
		Window: windowTime, Route: "route",
	}
}

// reserve must not fail.
func (b *bench) reserve(r keystore.Reservation) keystore.Decision {
	b.Helper()
	d, err := b.store.Reserve(b.Context(), r)
	if err != nil {
		b.Fatalf("reserve: %v", err)
	}
	return d
}

// expect reserves r, wants outcome and returns the decision.
func (b *bench) expect(r keystore.Reservation, outcome keystore.Outcome) keystore.Decision {
	b.Helper()
	d := b.reserve(r)
	if d.Outcome != outcome {
		b.Fatalf("reserve: got %s, want %s", name(d.Outcome), name(outcome))
	}
	return d
}

// must is for calls that may not fail.
func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// fails wants want.
func (b *bench) fails(err, want error) {
	b.Helper()
	if !errors.Is(err, want) {
		b.Fatalf("error = %v, want %v", err, want)
	}
}

func owner(r keystore.Reservation) keystore.Ownership {
	return keystore.Ownership{Client: r.Client, Key: r.Key, Token: r.Token}
}

func created() keystore.Answer {
	return keystore.Answer{Status: http.StatusCreated, Header: http.Header{"Location": {"/payments/1"}}, Body: []byte(`{"id":1}`)}
}

func (b *bench) sameAnswer(got *keystore.Answer, want keystore.Answer) {
	b.Helper()
	if got == nil {
		b.Fatal("no answer")
	}
	if !bytes.Equal(want.Body, got.Body) {
		b.Errorf("body: want %d bytes, got %d: %.200q", len(want.Body), len(got.Body), got.Body)
	}
	if diff := cmp.Diff(want, *got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(keystore.Answer{}, "Body")); diff != "" {
		b.Errorf("answer: -want +got\n%s", diff)
	}
}

func name(o keystore.Outcome) string {
	names := []string{"none", "New", "TakenOver", "Mismatch", "Completed", "InFlight", "Unknown"}
	if o < 0 || int(o) >= len(names) {
		return "undefined"
	}
	return names[o]
}

// bounded is a context for calls that must end by themselves.
func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
