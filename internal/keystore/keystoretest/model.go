// SPDX-License-Identifier: Apache-2.0

package keystoretest

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// model checks random histories, with several stores, holders that end and wake up, repeated calls and steps of the clock, against a Store of
// a few lines in memory.
func model(b *bench) {
	stores := b.stores(3)
	histories := 0
	rapid.Check(b.T, func(t *rapid.T) {
		histories++
		m := &memory{entries: map[string]*entry{}, holders: map[keystore.Holder]time.Time{}, now: Start()}
		b.SetClock(b.T, m.now)
		h := history{T: t, bench: b, memory: m, stores: stores, scope: fmt.Sprint("history ", histories)}
		for range 3 {
			h.processes = append(h.processes, keystore.NewHolder())
		}
		t.Repeat(map[string]func(*rapid.T){
			"reserve":     h.reserve,
			"repeat":      h.repeat,
			"complete":    h.complete,
			"release":     h.release,
			"markUnknown": h.markUnknown,
			"keepAlive":   h.keepAlive,
			"retire":      h.retire,
			"clock":       h.clock,
		})
	})
}

// history is one random history, told to the store and to the model.
type history struct {
	*rapid.T
	bench     *bench
	memory    *memory
	stores    []keystore.Store
	scope     string
	processes []keystore.Holder
	sent      []keystore.Reservation
}

func (h *history) store() keystore.Store { return rapid.SampledFrom(h.stores).Draw(h.T, "store") }

func (h *history) reserve(t *rapid.T) {
	r := keystore.Reservation{
		Client:      h.scope,
		Key:         rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key"),
		Fingerprint: keystore.Fingerprint{rapid.SampledFrom([]byte{0, 0, 0, 1}).Draw(t, "fingerprint")},
		Token:       keystore.NewToken(),
		Holder:      rapid.SampledFrom(h.processes).Draw(t, "holder"),
		Lease:       leaseTime,
		Window:      rapid.SampledFrom([]time.Duration{time.Second, time.Hour, 30 * time.Hour}).Draw(t, "window"),
		Route:       "route",
		TakeOver:    rapid.Bool().Draw(t, "take over"),
	}
	h.sent = append(h.sent, r)
	h.compare(r)
}

// repeat sends an earlier reservation once more, as after a lost answer.
func (h *history) repeat(t *rapid.T) { h.compare(h.earlier(t)) }

func (h *history) earlier(t *rapid.T) keystore.Reservation {
	if len(h.sent) == 0 {
		t.Skip("nothing sent yet")
	}
	return rapid.SampledFrom(h.sent).Draw(t, "request")
}

func (h *history) compare(r keystore.Reservation) {
	got, err := h.store().Reserve(h.bench.Context(), r)
	if err != nil {
		h.Fatalf("reserve: %v", err)
	}
	want := h.memory.reserve(r, got.Seed)
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		h.Fatalf("reserve: -model +store\n%s", diff)
	}
}

func (h *history) complete(t *rapid.T) {
	answer := keystore.Answer{Status: rapid.IntRange(200, 204).Draw(t, "status"), Body: rapid.SliceOfN(rapid.Byte(), 0, 8).Draw(t, "body")}
	o := owner(h.earlier(t))
	h.same("complete", h.store().Complete(h.bench.Context(), o, answer), h.memory.complete(o, answer))
}

func (h *history) release(t *rapid.T) {
	o := owner(h.earlier(t))
	h.same("release", h.store().Release(h.bench.Context(), o), h.memory.release(o))
}

func (h *history) markUnknown(t *rapid.T) {
	o := owner(h.earlier(t))
	h.same("mark unknown", h.store().MarkUnknown(h.bench.Context(), o), h.memory.markUnknown(o))
}

func (h *history) same(call string, err error, owner bool) {
	if (err == nil) != owner || err != nil && !errors.Is(err, keystore.ErrNotOwner) {
		h.Fatalf("%s: store says %v, model says owner: %v", call, err, owner)
	}
}

func (h *history) keepAlive(t *rapid.T) {
	holder := rapid.SampledFrom(h.processes).Draw(t, "holder")
	if err := h.store().KeepAlive(h.bench.Context(), holder, leaseTime); err != nil {
		h.Fatalf("keep alive: %v", err)
	}
	h.memory.holders[holder] = h.memory.now.Add(leaseTime)
}

func (h *history) retire(t *rapid.T) {
	holder := rapid.SampledFrom(h.processes).Draw(t, "holder")
	if err := h.store().Retire(h.bench.Context(), holder); err != nil {
		h.Fatalf("retire: %v", err)
	}
	delete(h.memory.holders, holder)
}

func (h *history) clock(t *rapid.T) {
	step := rapid.SampledFrom([]time.Duration{
		time.Microsecond, time.Second - time.Microsecond, leaseTime / 2, leaseTime, time.Hour, 24 * time.Hour, 31 * time.Hour,
	}).Draw(t, "step")
	h.memory.now = h.memory.now.Add(step)
	h.bench.SetClock(h.bench.T, h.memory.now)
}

// memory is the model: what a Store is, were there one caller at a time and no crash.
type memory struct {
	entries map[string]*entry
	holders map[keystore.Holder]time.Time
	now     time.Time
}

type entry struct {
	keystore.Reservation
	seed       [16]byte
	taken      bool
	unknown    bool
	answer     *keystore.Answer
	reservedAt time.Time
	expiresAt  time.Time
}

// open: reserved, and its owner has not said otherwise.
func (e *entry) open() bool { return e.answer == nil && !e.unknown }

func (m *memory) alive(h keystore.Holder) bool { return m.holders[h].After(m.now) }

// find returns the entry that is honoured, or nil.
func (m *memory) find(client, key string) *entry {
	e := m.entries[client+"\x00"+key]
	if e != nil && (e.expiresAt.After(m.now) || e.open() && m.alive(e.Holder)) {
		return e
	}
	return nil
}

// reserve decides as the server should; seed is what the server says for a new entry.
func (m *memory) reserve(r keystore.Reservation, seed [16]byte) keystore.Decision {
	e := m.find(r.Client, r.Key)
	switch {
	case e == nil:
		m.entries[r.Client+"\x00"+r.Key] = &entry{Reservation: r, seed: seed, reservedAt: m.now, expiresAt: m.now.Add(r.Window)}
		m.hold(r)
		return keystore.Decision{Outcome: keystore.New, Seed: seed}
	case e.Fingerprint != r.Fingerprint:
		return keystore.Decision{Outcome: keystore.Mismatch}
	case e.answer != nil:
		return keystore.Decision{Outcome: keystore.Completed, Answer: e.answer}
	case e.open() && e.Token == r.Token:
		m.hold(r)
		if e.taken {
			return keystore.Decision{Outcome: keystore.TakenOver, Seed: e.seed}
		}
		return keystore.Decision{Outcome: keystore.New, Seed: e.seed}
	case e.open() && m.alive(e.Holder):
		return keystore.Decision{Outcome: keystore.InFlight, LeaseRemaining: m.holders[e.Holder].Sub(m.now), Since: m.now.Sub(e.reservedAt)}
	case !r.TakeOver || e.Token == r.Token:
		return keystore.Decision{Outcome: keystore.Unknown, Since: m.now.Sub(e.reservedAt)}
	}
	*e = entry{Reservation: r, seed: e.seed, taken: true, reservedAt: m.now, expiresAt: m.now.Add(r.Window)}
	m.hold(r)
	return keystore.Decision{Outcome: keystore.TakenOver, Seed: e.seed}
}

// hold renews the lease when half of it is over.
func (m *memory) hold(r keystore.Reservation) {
	if !m.holders[r.Holder].After(m.now.Add(r.Lease / 2)) {
		m.holders[r.Holder] = m.now.Add(r.Lease)
	}
}

// owned returns the entry that is honoured and was last reserved with the token, or nil.
func (m *memory) owned(o keystore.Ownership) *entry {
	if e := m.find(o.Client, o.Key); e != nil && e.Token == o.Token {
		return e
	}
	return nil
}

func (m *memory) complete(o keystore.Ownership, answer keystore.Answer) bool {
	e := m.owned(o)
	if e != nil && e.answer == nil {
		e.answer, e.expiresAt = &answer, m.now.Add(e.Window)
	}
	return e != nil
}

func (m *memory) release(o keystore.Ownership) bool {
	e := m.owned(o)
	switch {
	case e != nil && e.taken && e.answer == nil:
		return m.markUnknown(o)
	case e == nil || !e.open():
		return false
	}
	delete(m.entries, o.Client+"\x00"+o.Key)
	return true
}

func (m *memory) markUnknown(o keystore.Ownership) bool {
	e := m.owned(o)
	if e == nil || e.answer != nil {
		return false
	}
	if !e.unknown {
		e.unknown, e.expiresAt = true, m.now.Add(e.Window)
	}
	return true
}
