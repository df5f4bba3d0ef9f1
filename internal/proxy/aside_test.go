// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// choosyStore refuses the result of one key, alone and for ever.
type choosyStore struct {
	*memStore
	key string
}

func (s *choosyStore) Complete(ctx context.Context, o keystore.Ownership, a keystore.Answer) error {
	if o.Key == s.key {
		return errors.New("value out of range")
	}
	return s.memStore.Complete(ctx, o, a)
}

// value is the value of a metric without the prefix that all have; label is the value of its only label, or empty.
func (r *rig) value(name, label string) float64 {
	r.t.Helper()
	families, err := r.registry.Gather()
	must(r.t, err)
	for _, f := range families {
		if f.GetName() != "idempotency_proxy_"+name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" || m.GetLabel()[0].GetValue() == label {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// TestRefusedRecordBlocksNoOther: what the store never takes waits aside, and what is behind it lands.
func TestRefusedRecordBlocksNoOther(t *testing.T) {
	store := &choosyStore{newMemStore(), "poison"}
	r := start(t, func(s *setup) { s.store = store })
	for i := range 5 {
		key := fmt.Sprint("k", i)
		if i == 1 {
			key = store.key
		}
		store.failing(keystore.ErrUnavailable, "Complete") // so that all are journalled
		eventually(t, "the store takes a reservation", func() bool { return r.post(key, `{}`).Status == 201 })
	}
	store.failing(nil, "Complete")
	eventually(t, "the others land", func() bool {
		return r.value("journal_records", "") == 1 && r.value("journal_set_aside_records", "") == 1
	})
	for _, key := range []string{"k0", "k2", "k3", "k4"} {
		want(t, r.post(key, `{}`), 201, "", true)
	}
	want(t, r.post(store.key, `{}`), 409, "in-flight", false) // neither lost nor executed again
	if r.proxy.current.Load().link.down.Load() {
		t.Error("the store is taken for down")
	}
	r.executions(5)
}

// TestRecordGoesToItsOwnStore: the store of a journalled result is replaced, comes back, and has it.
func TestRecordGoesToItsOwnStore(t *testing.T) {
	one, two := newMemStore(), newMemStore()
	r := start(t, func(s *setup) { s.store = one }) // with the identity "one"
	one.failing(keystore.ErrUnavailable, "Complete", "Check")
	want(t, r.post("k", `{}`), 201, "", false)
	r.proxy.Load(sampleConfig(), two, "two")
	eventually(t, "the result is kept for its store", func() bool { return r.value("journal_set_aside_records", "") == 1 })
	if lost := r.value("reservations_lost_total", ""); lost != 0 {
		t.Errorf("%v results are counted as lost", lost)
	}
	one.failing(nil, "Complete", "Check")
	r.proxy.Load(sampleConfig(), one, "one")
	eventually(t, "it lands", func() bool { return r.value("journal_records", "") == 0 })
	want(t, r.post("k", `{}`), 201, "", true)
	r.executions(1)
}

// TestStoreByAnotherName: an identity that differs is no proof of another store.
func TestStoreByAnotherName(t *testing.T) {
	r := start(t)
	r.store.failing(keystore.ErrUnavailable, "Complete", "Check")
	want(t, r.post("k", `{}`), 201, "", false)
	same := &lossyStore{memStore: r.store}
	r.proxy.Load(sampleConfig(), same, "renamed")
	r.store.failing(nil, "Complete", "Check")
	eventually(t, "it lands", func() bool { return r.value("journal_records", "") == 0 })
	want(t, r.post("k", `{}`), 201, "", true)
}

// TestDoubtfulReleaseIsNotLost: that there was no reservation to give back is no loss.
func TestDoubtfulReleaseIsNotLost(t *testing.T) {
	r := start(t)
	r.store.failing(keystore.ErrUnavailable, "Reserve", "Check")
	want(t, r.post("k", `{}`), 503, "store-unavailable", false)
	r.store.failing(nil, "Reserve", "Check")
	eventually(t, "the record is gone", func() bool { return r.value("journal_records_total", "needless") == 1 })
	if lost := r.value("reservations_lost_total", ""); lost != 0 {
		t.Errorf("%v results are counted as lost", lost)
	}
}

// TestSetAsideIsTriedAgain: by itself, after a while.
func TestSetAsideIsTriedAgain(t *testing.T) {
	j, err := openJournal(t.TempDir())
	must(t, err)
	defer j.close()
	store := &choosyStore{newMemStore(), "k1"}
	registry := prometheus.NewRegistry()
	m := newMetrics(registry, time.Now)
	l := newLink(store, "", keystore.NewHolder(), DefaultLimits(), m, quietLogger())
	g := newGeneration(sampleConfig(), l, nil)
	defer g.leave()
	s := newSettler(j, 1<<20, m, quietLogger())
	j.add(t, sampleRecord(1))
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.run(ctx, func() *generation { g.enter(); return g })
	}()
	tries := store.count("Check")
	eventually(t, "it is tried again", func() bool { return store.count("Check") > tries+1 })
	stop()
	<-done
	if records, aside, _ := j.size(); records != 1 || aside > 1 {
		t.Errorf("%d records, %d aside, want 1 and at most 1", records, aside)
	}
}

// TestJournalSetsAside: order, bound at N and N+1, the file's size and its content after a crash.
func TestJournalSetsAside(t *testing.T) {
	dir := t.TempDir()
	j, err := openJournal(dir)
	must(t, err)
	j.spare = 500
	record := func(i int) *record {
		r := sampleRecord(i)
		r.Token = keystore.Token{1} // the length of a line depends on it
		return r
	}
	for i := range 9 {
		j.add(t, record(i))
	}
	line := j.end / 9
	j.asides = 2 * line
	for i := range 3 { // 0, 1 and 2; there is room for two
		first, dropped, err := j.setAside()
		must(t, err)
		if wantDropped := i / 2; !first || dropped != wantDropped {
			t.Errorf("record %d: first %v, dropped %d, want %d", i, first, dropped, wantDropped)
		}
	}
	for range 5 { // 3 to 7
		must(t, j.drop())
		if j.end-j.live >= j.spare+line {
			t.Errorf("%d bytes of %d are dead", j.end-j.live, j.end)
		}
	}
	if records, aside, bytes := j.size(); records != 3 || aside != 2 || bytes != 3*line || j.waiting.Load() != line {
		t.Errorf("size %d %d %d, waiting %d, want 3 2 %d, %d", records, aside, bytes, j.waiting.Load(), 3*line, line)
	}
	j.close()
	j, err = openJournal(dir)
	must(t, err)
	keys := func() (all []string) {
		for _, r := range drained(t, j) {
			all = append(all, r.Key)
		}
		return all
	}
	if got := keys(); !slices.Equal(got[:2], []string{"k1", "k2"}) || got[len(got)-1] != "k8" {
		t.Errorf("after a crash %v", got)
	}
	for i := range 3 {
		j.add(t, sampleRecord(i))
	}
	_, _, err = j.setAside()
	must(t, err)
	j.reconsider()
	if got := keys(); !slices.Equal(got, []string{"k1", "k2", "k0"}) || j.end != 0 {
		t.Errorf("reconsidered %v, %d bytes are left", got, j.end)
	}
	j.close()
}
