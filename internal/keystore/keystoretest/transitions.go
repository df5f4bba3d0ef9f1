// SPDX-License-Identifier: Apache-2.0

package keystoretest

import (
	"net/http"
	"strings"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
)

func life(b *bench) {
	first := b.request("key")
	d := b.expect(first, keystore.New)
	if d.Seed == [16]byte{} {
		b.Error("no seed")
	}
	b.must(b.store.Complete(b.Context(), owner(first), created()))
	b.sameAnswer(b.expect(b.request("key"), keystore.Completed).Answer, created())

	other := b.request("other")
	seed := b.expect(other, keystore.New).Seed
	if seed == d.Seed {
		b.Error("two entries have one seed")
	}
	b.must(b.store.Release(b.Context(), owner(other)))
	b.expect(b.request("other"), keystore.New)
}

// decisions: what a second request meets, in every state, with the same and with another fingerprint, with and without taking over.
func decisions(b *bench) {
	complete := func(r keystore.Reservation) { b.must(b.store.Complete(b.Context(), owner(r), created())) }
	markUnknown := func(r keystore.Reservation) { b.must(b.store.MarkUnknown(b.Context(), owner(r))) }
	retire := func(r keystore.Reservation) { b.must(b.store.Retire(b.Context(), r.Holder)) }
	for _, row := range []struct {
		reason   string
		prepare  func(keystore.Reservation)
		mismatch bool
		takeOver bool
		want     keystore.Outcome
	}{
		{"a live holder executes", nil, false, false, keystore.InFlight},
		{"a live holder keeps what it has", nil, false, true, keystore.InFlight},
		{"mismatch is decided before in flight", nil, true, true, keystore.Mismatch},
		{"an answer is there", complete, false, false, keystore.Completed},
		{"an answer is never taken over", complete, false, true, keystore.Completed},
		{"mismatch is decided before completed", complete, true, false, keystore.Mismatch},
		{"the owner does not know", markUnknown, false, false, keystore.Unknown},
		{"unknown by its owner's word is taken over", markUnknown, false, true, keystore.TakenOver},
		{"mismatch is decided before unknown", markUnknown, true, true, keystore.Mismatch},
		{"the holder has ended", retire, false, false, keystore.Unknown},
		{"unknown by its holder's end is taken over", retire, false, true, keystore.TakenOver},
	} {
		key := strings.ReplaceAll(row.reason, " ", "-")
		first := b.request(key)
		first.Holder = keystore.NewHolder()
		seed := b.expect(first, keystore.New).Seed
		if row.prepare != nil {
			row.prepare(first)
		}
		second := b.request(key)
		second.TakeOver = row.takeOver
		if row.mismatch {
			second.Fingerprint[31] ^= 1
		}
		d := b.reserve(second)
		if d.Outcome != row.want {
			b.Errorf("%s: got %s, want %s", row.reason, name(d.Outcome), name(row.want))
		}
		if (d.Answer != nil) != (row.want == keystore.Completed) {
			b.Errorf("%s: answer %v", row.reason, d.Answer)
		}
		if row.want == keystore.TakenOver && d.Seed != seed {
			b.Errorf("%s: seed changed", row.reason)
		}
		if row.want != keystore.TakenOver && d.Seed != [16]byte{} {
			b.Errorf("%s: somebody else's seed is told", row.reason)
		}
	}
}

// ownersOnly: only the token counts, in every state.
func ownersOnly(b *bench) {
	stranger := keystore.NewToken()
	refused := func(reason string, r keystore.Reservation, token keystore.Token) {
		b.Helper()
		o := keystore.Ownership{Client: r.Client, Key: r.Key, Token: token}
		for call, err := range map[string]error{
			"complete":     b.store.Complete(b.Context(), o, keystore.Answer{Status: http.StatusTeapot}),
			"release":      b.store.Release(b.Context(), o),
			"mark unknown": b.store.MarkUnknown(b.Context(), o),
		} {
			if err == nil {
				b.Errorf("%s: %s succeeded", reason, call)
				continue
			}
			b.fails(err, keystore.ErrNotOwner)
		}
	}
	absent := b.request("absent")
	refused("absent", absent, absent.Token)

	held := b.request("held")
	b.expect(held, keystore.New)
	refused("reserved by another", held, stranger)
	b.expect(b.request("held"), keystore.InFlight)

	b.must(b.store.MarkUnknown(b.Context(), owner(held)))
	b.must(b.store.MarkUnknown(b.Context(), owner(held))) // repeated: the answer may have been lost
	refused("unknown", held, stranger)
	b.fails(b.store.Release(b.Context(), owner(held)), keystore.ErrNotOwner) // an unknown outcome is nobody's to release
	b.expect(b.request("held"), keystore.Unknown)
	b.must(b.store.Complete(b.Context(), owner(held), created())) // the owner has learned the outcome after all

	refused("completed", held, stranger)
	b.fails(b.store.Release(b.Context(), owner(held)), keystore.ErrNotOwner)
	b.fails(b.store.MarkUnknown(b.Context(), owner(held)), keystore.ErrNotOwner)
	b.sameAnswer(b.expect(b.request("held"), keystore.Completed).Answer, created())

	released := b.request("released")
	b.expect(released, keystore.New)
	b.must(b.store.Release(b.Context(), owner(released)))
	refused("released", released, released.Token)
}

// ownEarlierCall: a Reserve that is repeated with its token gets the answer of the first time.
func ownEarlierCall(b *bench) {
	first := b.request("key")
	d := b.expect(first, keystore.New)
	if again := b.expect(first, keystore.New); again.Seed != d.Seed {
		b.Error("the repeated call got another seed")
	}
	b.must(b.store.Retire(b.Context(), b.holder))
	if again := b.expect(first, keystore.New); again.Seed != d.Seed {
		b.Error("the repeated call got another seed after the holder's end")
	}
	b.expect(b.request("key"), keystore.InFlight) // the repeated call has made its holder alive again

	b.must(b.store.MarkUnknown(b.Context(), owner(first)))
	second := b.request("key")
	second.TakeOver = true
	b.expect(second, keystore.TakenOver)
	if again := b.expect(second, keystore.TakenOver); again.Seed != d.Seed {
		b.Error("the repeated take-over got another seed")
	}
	b.expect(first, keystore.InFlight) // whose reservation is gone
	other := second
	other.Fingerprint[0] ^= 1
	b.expect(other, keystore.Mismatch)
	b.must(b.store.Complete(b.Context(), owner(second), created()))
	b.expect(second, keystore.Completed)
}

// releasedTakeOverIsUnknown: that the second attempt had no effect says nothing about the first, however often it is said.
func releasedTakeOverIsUnknown(b *bench) {
	first := b.request("key")
	seed := b.expect(first, keystore.New).Seed
	b.must(b.store.MarkUnknown(b.Context(), owner(first)))
	second := b.request("key")
	second.TakeOver, second.Window = true, 2*windowTime
	b.expect(second, keystore.TakenOver)
	b.advance(time.Second)
	b.must(b.store.Release(b.Context(), owner(second)))
	b.must(b.store.Release(b.Context(), owner(second))) // repeated: the answer may have been lost
	b.fails(b.store.Release(b.Context(), owner(first)), keystore.ErrNotOwner)
	b.expect(b.request("key"), keystore.Unknown)
	third := b.request("key")
	third.TakeOver, third.Holder, third.Window = true, keystore.NewHolder(), 2*windowTime
	if b.expect(third, keystore.TakenOver).Seed != seed {
		b.Error("the third attempt has another seed than the first")
	}
	b.fails(b.store.Release(b.Context(), owner(second)), keystore.ErrNotOwner)
	b.expect(b.request("key"), keystore.InFlight)
	b.must(b.store.Retire(b.Context(), third.Holder))
	b.must(b.store.Release(b.Context(), owner(third))) // the journal's, when its process is gone
	b.advance(2*windowTime - time.Microsecond)
	b.must(b.store.Release(b.Context(), owner(third))) // changes nothing, not even the window
	b.expect(b.request("key"), keystore.Unknown)
	b.advance(time.Microsecond)
	b.fails(b.store.Release(b.Context(), owner(third)), keystore.ErrNotOwner)
	b.expect(b.request("key"), keystore.New)
}

// endedAttemptIsNotBegunAgain: a Reserve that arrives after the end of its own attempt takes nothing over, since nobody would end that again.
func endedAttemptIsNotBegunAgain(b *bench) {
	first := b.request("key")
	first.TakeOver = true
	b.expect(first, keystore.New)
	b.must(b.store.MarkUnknown(b.Context(), owner(first)))
	b.expect(first, keystore.Unknown)
	second := b.request("key")
	second.TakeOver = true
	b.expect(second, keystore.TakenOver)
	b.must(b.store.Release(b.Context(), owner(second)))
	b.expect(second, keystore.Unknown)
}

func answersByteForByte(b *bench) {
	binary := make([]byte, 256)
	for i := range binary {
		binary[i] = byte(i)
	}
	for _, row := range []struct {
		reason string
		answer keystore.Answer
	}{
		{"every byte", keystore.Answer{Status: 200, Body: binary}},
		{"no body", keystore.Answer{Status: 204}},
		{"empty body", keystore.Answer{Status: 200, Body: []byte{}}},
		{"bytes that are not UTF-8", keystore.Answer{Status: 200, Body: []byte("\xff\xfe\x00\x1f\x8b")}},
		{"a megabyte", keystore.Answer{Status: 200, Body: []byte(strings.Repeat("0123456789abcdef", 1<<16))}},
		{"order of values", keystore.Answer{Status: 200, Header: http.Header{"Link": {"b", "a", "", "b"}, "Vary": {"Accept"}}}},
		{"values with quotes, tabs and high bytes", keystore.Answer{Status: 200, Header: http.Header{"Etag": {`W/"\"<&>` + "\t\xe9\xff"}}}},
		{"values in UTF-8", keystore.Answer{Status: 200, Header: http.Header{"Content-Disposition": {"größe; \u2028"}}}},
		{"smallest status", keystore.Answer{Status: 100}},
		{"largest status", keystore.Answer{Status: 999}},
		{"too large", keystore.Answer{Status: 201, Tombstone: keystore.TooLarge}},
		{"referenced", keystore.Answer{Status: 201, Tombstone: keystore.Referenced, Header: http.Header{"Location": {"/payments/1"}}}},
		{"streamed", keystore.Answer{Status: 200, Tombstone: keystore.Streamed}},
	} {
		r := b.request(strings.ReplaceAll(row.reason, " ", "-"))
		b.expect(r, keystore.New)
		b.must(b.store.Complete(b.Context(), owner(r), row.answer))
		b.Log(row.reason)
		b.sameAnswer(b.expect(b.request(r.Key), keystore.Completed).Answer, row.answer)
	}
}

// answerIsKept: the first answer under a token stays, whatever else its owner says.
func answerIsKept(b *bench) {
	r := b.request("key")
	b.expect(r, keystore.New)
	b.must(b.store.Complete(b.Context(), owner(r), created()))
	b.must(b.store.Complete(b.Context(), owner(r), created()))
	b.must(b.store.Complete(b.Context(), owner(r), keystore.Answer{Status: http.StatusTeapot}))
	b.sameAnswer(b.expect(b.request("key"), keystore.Completed).Answer, created())
}

// window: an entry is honoured until its window ends, in each state, to the smallest step of the clock.
func window(b *bench) {
	held, known, lost := b.request("held"), b.request("completed"), b.request("unknown")
	for _, r := range []keystore.Reservation{held, known, lost} {
		b.expect(r, keystore.New)
	}
	b.must(b.store.Complete(b.Context(), owner(known), created()))
	b.must(b.store.MarkUnknown(b.Context(), owner(lost)))
	b.must(b.store.Retire(b.Context(), b.holder))
	b.advance(windowTime - time.Microsecond)
	b.holder = keystore.NewHolder()
	b.expect(b.request("held"), keystore.Unknown)
	b.expect(b.request("completed"), keystore.Completed)
	b.expect(b.request("unknown"), keystore.Unknown)
	b.advance(time.Microsecond)
	b.expect(b.request("held"), keystore.New)
	b.expect(b.request("completed"), keystore.New)
	b.expect(b.request("unknown"), keystore.New)
}

// windowStartsAnew: with the answer, with an outcome that becomes unknown, and with a take-over.
func windowStartsAnew(b *bench) {
	known, lost, dead := b.request("completed"), b.request("unknown"), b.request("taken over")
	for _, r := range []keystore.Reservation{known, lost, dead} {
		b.expect(r, keystore.New)
	}
	b.advance(windowTime - time.Second)
	b.must(b.store.Complete(b.Context(), owner(known), created()))
	b.must(b.store.MarkUnknown(b.Context(), owner(lost)))
	again := b.request("taken over")
	again.TakeOver, again.Holder, again.Window = true, keystore.NewHolder(), 2*windowTime
	b.expect(again, keystore.TakenOver)
	b.must(b.store.Retire(b.Context(), again.Holder))
	b.advance(windowTime - time.Microsecond)
	b.expect(b.request("completed"), keystore.Completed)
	b.expect(b.request("unknown"), keystore.Unknown)
	b.advance(time.Microsecond)
	b.expect(b.request("completed"), keystore.New)
	b.expect(b.request("unknown"), keystore.New)
	b.advance(windowTime - time.Microsecond)
	b.expect(b.request("taken over"), keystore.Unknown)
	b.advance(time.Microsecond)
	b.expect(b.request("taken over"), keystore.New)
}

// expiredEntryIsAbsent: for its old owner as well, before and after somebody else has the key, on the same and on another day.
func expiredEntryIsAbsent(b *bench) {
	for _, gap := range []time.Duration{windowTime, 26 * time.Hour} {
		old := b.request("key of " + gap.String())
		old.Holder = keystore.NewHolder()
		seed := b.expect(old, keystore.New).Seed
		b.advance(gap)
		b.fails(b.store.Complete(b.Context(), owner(old), created()), keystore.ErrNotOwner)
		b.fails(b.store.Release(b.Context(), owner(old)), keystore.ErrNotOwner)
		b.fails(b.store.MarkUnknown(b.Context(), owner(old)), keystore.ErrNotOwner)
		successor := b.request(old.Key)
		successor.Fingerprint = keystore.Fingerprint{9}
		if b.expect(successor, keystore.New).Seed == seed {
			b.Error("another entry has the same seed")
		}
		b.must(b.store.KeepAlive(b.Context(), old.Holder, leaseTime)) // the old holder wakes up
		b.expect(successor, keystore.New)
		b.fails(b.store.Complete(b.Context(), owner(old), created()), keystore.ErrNotOwner)
		b.must(b.store.Complete(b.Context(), owner(successor), created()))
		b.expect(old, keystore.Mismatch)
	}
}

// lease: a holder is alive until its lease ends, to the smallest step of the clock; Reserve starts a lease, KeepAlive renews it.
func lease(b *bench) {
	r := b.request("key")
	b.expect(r, keystore.New)
	b.advance(time.Second)
	d := b.expect(b.request("key"), keystore.InFlight)
	if d.LeaseRemaining != leaseTime-time.Second || d.Since != time.Second {
		b.Errorf("remaining %v and since %v, want 9s and 1s", d.LeaseRemaining, d.Since)
	}
	b.must(b.store.KeepAlive(b.Context(), b.holder, leaseTime))
	b.advance(leaseTime - time.Microsecond)
	if d := b.expect(b.request("key"), keystore.InFlight); d.LeaseRemaining != time.Microsecond {
		b.Errorf("remaining %v, want 1µs", d.LeaseRemaining)
	}
	b.advance(time.Microsecond)
	if d := b.expect(b.request("key"), keystore.Unknown); d.Since != leaseTime+time.Second {
		b.Errorf("since %v, want 11s", d.Since)
	}
	b.must(b.store.KeepAlive(b.Context(), b.holder, leaseTime))
	b.expect(b.request("key"), keystore.InFlight)
	b.must(b.store.Retire(b.Context(), b.holder))
	b.must(b.store.Retire(b.Context(), b.holder))
	b.expect(b.request("key"), keystore.Unknown)
}

// liveHolderOutlastsWindow: as long as the holder lives, the reservation holds, and the answer counts its window from completion.
func liveHolderOutlastsWindow(b *bench) {
	r := b.request("key")
	b.expect(r, keystore.New)
	lease := 100 * windowTime // days, so that buckets change
	b.must(b.store.KeepAlive(b.Context(), b.holder, lease))
	b.advance(lease - time.Second)
	second := b.request("key")
	second.TakeOver = true
	b.expect(second, keystore.InFlight)
	b.must(b.store.Complete(b.Context(), owner(r), created()))
	b.advance(windowTime - time.Microsecond)
	b.expect(b.request("key"), keystore.Completed)
	b.advance(time.Microsecond)
	b.expect(b.request("key"), keystore.New)
}

// takeOverFencesStaleHolder: case 3 of the failures that others had.
func takeOverFencesStaleHolder(b *bench) {
	stale := b.request("key")
	seed := b.expect(stale, keystore.New).Seed
	b.advance(leaseTime)
	fresh := b.request("key")
	fresh.Holder, fresh.TakeOver = keystore.NewHolder(), true
	if d := b.expect(fresh, keystore.TakenOver); d.Seed != seed {
		b.Error("seed changed with the owner")
	}
	b.must(b.store.KeepAlive(b.Context(), stale.Holder, leaseTime))
	b.fails(b.store.Complete(b.Context(), owner(stale), keystore.Answer{Status: http.StatusTeapot}), keystore.ErrNotOwner)
	b.fails(b.store.Release(b.Context(), owner(stale)), keystore.ErrNotOwner)
	b.fails(b.store.MarkUnknown(b.Context(), owner(stale)), keystore.ErrNotOwner)
	b.must(b.store.Complete(b.Context(), owner(fresh), created()))
	b.fails(b.store.Complete(b.Context(), owner(stale), keystore.Answer{Status: http.StatusTeapot}), keystore.ErrNotOwner)
	b.sameAnswer(b.expect(b.request("key"), keystore.Completed).Answer, created())
}

// scopeIsClientAndKey: no other pair is the same entry, however the two are put together.
func scopeIsClientAndKey(b *bench) {
	pairs := []struct{ client, key, reason string }{
		{"client", "key", "the pair itself"},
		{"other", "key", "another client"},
		{"client", "KEY", "case counts"},
		{"clientk", "ey", "joined, it is the same"},
		{"key", "client", "swapped"},
		{"client", "key ", "trailing space counts"},
		{"client", "k_y", "an underscore is no pattern"},
		{"clïent", "key", "beyond ASCII"},
		{strings.Repeat("c", 512), strings.Repeat("k", 255), "the longest"},
	}
	for _, p := range pairs {
		r := b.request(p.key)
		r.Client = p.client
		if d := b.reserve(r); d.Outcome != keystore.New {
			b.Errorf("%s: %s", p.reason, name(d.Outcome))
		}
	}
}

func check(b *bench) { b.must(b.store.Check(b.Context())) }
