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
		Op: opComplete, Keyspace: "shop.payments", Client: "alice", Key: fmt.Sprint("k", i), Token: keystore.NewToken(),
		Answer: &keystore.Answer{Status: 201, Header: map[string][]string{"Location": {"/caf\xe9"}}, Body: []byte{0, 1, '\n', 255}},
	}
}

// add appends r to the disk.
func (j *journal) add(t *testing.T, r *record) {
	t.Helper()
	if _, err := j.append(r); err != nil {
		t.Fatal(err)
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
		j.add(t, r)
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
	j.add(t, sampleRecord(1))
	first := j.end
	j.add(t, sampleRecord(2))
	j.close()
	path := filepath.Join(dir, journalName)
	whole, err := os.ReadFile(path)
	must(t, err)
	for cut := range len(whole) + 1 {
		must(t, os.WriteFile(path, whole[:cut], 0o600))
		j, err := openJournal(dir)
		must(t, err)
		j.add(t, sampleRecord(3))
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
	j.add(t, sampleRecord(1))
	middle := j.end
	j.add(t, sampleRecord(2))
	j.add(t, sampleRecord(3))
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
		j.add(t, sampleRecord(i))
	}
	line := j.end / 10
	for range 8 {
		must(t, j.drop())
		if spared := j.pending[0].offset; spared > j.spare+line {
			t.Fatalf("%d bytes of delivered records are kept", spared)
		}
	}
	j.add(t, sampleRecord(10))
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
	reserve := func(key, op, keyspace string) {
		reservation := keystore.Reservation{Client: "alice", Key: key, Token: keystore.NewToken(), Holder: keystore.NewHolder(), Lease: time.Hour, Window: time.Hour}
		_, err := store.Reserve(context.Background(), reservation)
		must(t, err)
		j.add(t, &record{Op: op, Keyspace: keyspace, Client: "alice", Key: key, Token: reservation.Token, Answer: &keystore.Answer{Status: 201}})
	}
	reserve("foreign", opComplete, "another")
	reserve("completed", opComplete, "shop.payments")
	reserve("released", opRelease, "shop.payments")
	reserve("unknown", opUnknown, "shop.payments")
	j.add(t, &record{Op: opComplete, Keyspace: "shop.payments", Client: "alice", Key: "lost", Answer: &keystore.Answer{}})
	j.close()

	r = start(t, func(s *setup) { s.spool, s.store = dir, store })
	eventually(t, "only the foreign one is left", func() bool {
		n, aside, _ := r.proxy.settler.journal.size()
		return n == 1 && aside == 1
	})
	if e := store.get("alice", "completed"); e.answer == nil {
		t.Error("not completed")
	}
	if e := store.get("alice", "released"); e != nil {
		t.Error("not released")
	}
	if e := store.get("alice", "unknown"); !e.unknown {
		t.Error("not unknown")
	}
	if e := store.get("alice", "foreign"); e.answer != nil {
		t.Error("another keyspace's was completed")
	}
}

// TestJournalHasNoClock: a record waits for as long as the store honours the entry, whatever this machine's clock does.
func TestJournalHasNoClock(t *testing.T) {
	clock := &stepClock{}
	r := start(t, func(s *setup) { s.now = clock.now })
	r.store.failing(keystore.ErrUnavailable, "Complete", "Check")
	first := r.post("k", `{}`)
	want(t, first, 201, "", false)
	clock.step(48 * time.Hour)
	r.store.failing(nil, "Complete", "Check")
	eventually(t, "the journal is empty", func() bool { n, _, _ := r.proxy.settler.journal.size(); return n == 0 })
	if again := r.post("k", `{}`); !again.replayed() || again.Body != first.Body {
		t.Errorf("got %d %q, want a replay of %q", again.Status, again.Body, first.Body)
	}
	r.executions(1)
}

// TestJournalThatCannotBeWritten: the result waits in memory.
func TestJournalThatCannotBeWritten(t *testing.T) {
	r := start(t)
	r.store.failing(keystore.ErrUnavailable, "Complete")
	j := r.proxy.settler.journal
	whole := j.file
	broken, err := os.Open(j.path)
	must(t, err)
	defer broken.Close()
	swap := func(file *os.File) {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.file = file
	}
	execute := func(key string) {
		eventually(t, "the store takes a reservation", func() bool { return r.post(key, `{}`).Status == 201 })
	}
	execute("before")
	swap(broken)
	execute("broken")
	swap(whole)
	execute("after")
	if records, _, _ := j.size(); records != 3 {
		t.Errorf("%d results wait, want 3", records)
	}
	r.store.failing(nil, "Complete")
	eventually(t, "all are delivered", func() bool { n, _, bytes := j.size(); return n == 0 && bytes == 0 })
	for _, key := range []string{"before", "broken", "after"} {
		want(t, r.post(key, `{}`), 201, "", true)
	}
	r.executions(3)
}

// TestJournalHoldsSoMuch: at the bound, and one byte beyond.
func TestJournalHoldsSoMuch(t *testing.T) {
	for _, row := range []struct {
		missing int64
		kept    bool
	}{{0, true}, {1, false}} {
		j, err := openJournal(t.TempDir())
		must(t, err)
		j.close() // nothing can be written any more
		r := sampleRecord(1)
		line, err := formatRecord(r)
		must(t, err)
		j.room = 2*int64(len(line)) - row.missing
		for _, wantKept := range []bool{true, row.kept} {
			if kept, err := j.append(r); kept != wantKept || err == nil {
				t.Errorf("%d bytes missing: kept %v, error %v, want %v and one", row.missing, kept, err, wantKept)
			}
		}
		must(t, j.drop())
		if kept, err := j.append(r); !kept || err == nil {
			t.Errorf("what was delivered makes no room: kept %v, error %v", kept, err)
		}
	}
}
