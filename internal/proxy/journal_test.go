// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/idempotency-dev/operator/internal/keystore"
)

func sampleRecord(i int) *record {
	return &record{
		Op: opComplete, Keyspace: "shop.payments", Client: "alice", Key: fmt.Sprint("k", i), Token: keystore.NewToken(), Until: time.Unix(1<<33, 0).UTC(),
		Answer: &keystore.Answer{Status: 201, Header: map[string][]string{"Location": {"/caf\xe9"}}, Body: []byte{0, 1, '\n', 255}},
	}
}

// drained takes every record out.
func drained(t *testing.T, j *journal) []*record {
	t.Helper()
	var all []*record
	for {
		r, err := j.oldest()
		must(t, err)
		if r == nil {
			return all
		}
		all = append(all, r)
		must(t, j.drop())
	}
}

func TestJournalSurvives(t *testing.T) {
	dir := t.TempDir()
	j, err := openJournal(dir)
	must(t, err)
	records := []*record{sampleRecord(1), sampleRecord(2), sampleRecord(3)}
	for _, r := range records {
		must(t, j.append(r))
	}
	must(t, j.drop())
	j.close() // as kill -9 does

	j, err = openJournal(dir)
	must(t, err)
	defer j.close()
	if diff := cmp.Diff(records, drained(t, j)); diff != "" { // the first comes again, and the store knows its token
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if info, err := os.Stat(filepath.Join(dir, journalName)); err != nil || info.Size() != 0 {
		t.Errorf("an empty journal has %v bytes, %v", info.Size(), err)
	}
}

// TestJournalCutAnywhere: wherever a crash cuts the file, the whole records before the cut are there and new ones can follow.
func TestJournalCutAnywhere(t *testing.T) {
	dir := t.TempDir()
	j, err := openJournal(dir)
	must(t, err)
	must(t, j.append(sampleRecord(1)))
	first := j.end
	must(t, j.append(sampleRecord(2)))
	j.close()
	path := filepath.Join(dir, journalName)
	whole, err := os.ReadFile(path)
	must(t, err)
	for cut := range len(whole) + 1 {
		must(t, os.WriteFile(path, whole[:cut], 0o600))
		j, err := openJournal(dir)
		must(t, err)
		must(t, j.append(sampleRecord(3)))
		var keys []string
		for _, r := range drained(t, j) {
			keys = append(keys, r.Key)
		}
		j.close()
		want := "k3"
		if int64(cut) >= first {
			want = "k1 " + want
		}
		if cut == len(whole) {
			want = "k1 k2 k3"
		}
		if got := strings.Join(keys, " "); got != want {
			t.Fatalf("cut at %d: got %q, want %q", cut, got, want)
		}
	}
}

func TestJournalSkipsWhatIsDamaged(t *testing.T) {
	dir := t.TempDir()
	j, err := openJournal(dir)
	must(t, err)
	must(t, j.append(sampleRecord(1)))
	middle := j.end
	must(t, j.append(sampleRecord(2)))
	must(t, j.append(sampleRecord(3)))
	_, err = j.file.WriteAt([]byte("X"), middle+20)
	must(t, err)
	j.close()
	j, err = openJournal(dir)
	must(t, err)
	defer j.close()
	if got := drained(t, j); len(got) != 2 || got[0].Key != "k1" || got[1].Key != "k3" {
		t.Errorf("got %d records", len(got))
	}
}

func TestJournalIsOneProcess(t *testing.T) {
	dir := t.TempDir()
	j, err := openJournal(dir)
	must(t, err)
	defer j.close()
	if second, err := openJournal(dir); err == nil {
		second.close()
		t.Error("two processes share a journal")
	}
}

func TestJournalCompacts(t *testing.T) {
	dir := t.TempDir()
	j, err := openJournal(dir)
	must(t, err)
	defer func() { j.close() }()
	j.spare = 500
	for i := range 10 {
		must(t, j.append(sampleRecord(i)))
	}
	line := j.end / 10
	for range 8 {
		must(t, j.drop())
		if spared := j.pending[0].offset; spared > j.spare+line {
			t.Fatalf("%d bytes of delivered records are kept", spared)
		}
	}
	must(t, j.append(sampleRecord(10)))
	j.close()
	j, err = openJournal(dir)
	must(t, err)
	got := drained(t, j)
	if n := len(got); n < 3 || n > 5 || got[n-3].Key != "k8" || got[n-1].Key != "k10" {
		t.Errorf("got %d records", n)
	}
}

// TestJournalOfAnEarlierProcess: what a killed process could not record is recorded by the next one.
func TestJournalOfAnEarlierProcess(t *testing.T) {
	store := newMemStore()
	dir := t.TempDir()
	j, err := openJournal(dir)
	must(t, err)
	var r *rig
	reserve := func(key string, op string, until time.Duration, keyspace string) {
		reservation := keystore.Reservation{Client: "alice", Key: key, Token: keystore.NewToken(), Holder: keystore.NewHolder(), Lease: time.Hour, Window: time.Hour}
		_, err := store.Reserve(context.Background(), reservation)
		must(t, err)
		must(t, j.append(&record{Op: op, Keyspace: keyspace, Client: "alice", Key: key, Token: reservation.Token, Until: time.Now().Add(until), Answer: &keystore.Answer{Status: 201}}))
	}
	reserve("expired", opComplete, -time.Second, "shop.payments")
	reserve("foreign", opComplete, time.Hour, "another")
	reserve("completed", opComplete, time.Hour, "shop.payments")
	reserve("released", opRelease, time.Hour, "shop.payments")
	reserve("unknown", opUnknown, time.Hour, "shop.payments")
	must(t, j.append(&record{Op: opComplete, Keyspace: "shop.payments", Client: "alice", Key: "lost", Until: time.Now().Add(time.Hour), Answer: &keystore.Answer{}}))
	j.close()

	r = start(t, func(s *setup) { s.spool, s.store = dir, store })
	eventually(t, "the journal is empty", func() bool { n, _ := r.proxy.settler.journal.size(); return n == 0 })
	if e := store.get("alice", "completed"); e.answer == nil {
		t.Error("not completed")
	}
	if e := store.get("alice", "released"); e != nil {
		t.Error("not released")
	}
	if e := store.get("alice", "unknown"); !e.unknown {
		t.Error("not unknown")
	}
	for _, key := range []string{"expired", "foreign"} {
		if e := store.get("alice", key); e.answer != nil {
			t.Errorf("%s was completed", key)
		}
	}
}

// TestFullJournalRefusesWork: what cannot be recorded must not be executed.
func TestFullJournalRefusesWork(t *testing.T) {
	r := start(t, func(s *setup) { s.limits.JournalBytes = 100 })
	r.store.failing(keystore.ErrUnavailable, "Complete")
	want(t, r.post("k1", `{}`), 201, "", false)
	want(t, r.post("k2", `{}`), 503, "overloaded", false)
	r.executions(1)
	r.store.failing(nil, "Complete")
	eventually(t, "work is taken again", func() bool { return r.post("k2", `{}`).Status == 201 })
	want(t, r.post("k1", `{}`), 201, "", true)
	r.executions(2)
}

// TestCloseDeliversTheJournal: an orderly end leaves nothing behind that the store takes.
func TestCloseDeliversTheJournal(t *testing.T) {
	r := start(t)
	r.store.failing(keystore.ErrUnavailable, "Complete", "Check")
	want(t, r.post("k", `{}`), 201, "", false)
	closed := make(chan error, 1)
	go func() { closed <- r.proxy.Close(context.Background()) }()
	select {
	case err := <-closed:
		t.Fatalf("closed with a full journal: %v", err)
	case <-time.After(2 * firstRetry):
	}
	r.store.failing(nil, "Complete", "Check")
	must(t, <-closed)
	r.closed = true
	if e := r.store.get("alice", "k"); e == nil || e.answer == nil {
		t.Error("not recorded")
	}
	if !r.store.retired || !r.store.isClosed() {
		t.Errorf("retired %v, closed %v", r.store.retired, r.store.closed)
	}
}
