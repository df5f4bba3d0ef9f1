// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/gob"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// What a record asks of the store.
const (
	opComplete = "complete"
	opRelease  = "release"
	opUnknown  = "unknown"
)

// record is a result that the store has not taken yet.
type record struct {
	Op       string
	Keyspace string
	// Store is the identity of the store that the reservation was made in; empty: not known.
	Store  string
	Client string
	Key    string
	Token  keystore.Token
	Answer *keystore.Answer
	// Doubtful: nobody knows whether there is a reservation to end.
	Doubtful bool
}

func (r *record) ownership() keystore.Ownership {
	return keystore.Ownership{Client: r.Client, Key: r.Key, Token: r.Token}
}

// journal is a file of records, one to a line behind its checksum, oldest first. A record is on the disk when append returns. A line that a crash
// cut short was never acknowledged and is dropped. What has been delivered stays in the file until all has, or the file is compacted:
// delivering a record twice changes nothing, since the store compares tokens.
//
// A record that the disk does not take is held in memory, and is lost when this process is killed before the store takes it. A record that cannot
// be delivered now while others can is set aside, so that it blocks none, and waits with others of its kind for as long as there is room.
type journal struct {
	mu      sync.Mutex
	file    *os.File
	path    string
	spare   int64        // bytes of delivered records that are cut off at once
	end     int64        // offset behind the last whole record
	live    int64        // bytes of undelivered records in the file
	pending []*entry     // undelivered, oldest first
	aside   []*entry     // set aside, oldest first
	room    int64        // bytes that may yet be held
	asides  int64        // bytes that may yet be set aside
	waiting atomic.Int64 // bytes of what is pending and never was set aside
	wake    chan struct{}
}

// entry is where a record is.
type entry struct {
	offset int64 // in the file
	length int
	held   *record // in memory instead
	told   bool    // the log knows that it was set aside
}

const (
	journalName = "journal"
	heldBytes   = 16 << 20
	asideBytes  = 16 << 20
)

// openJournal opens or creates the journal in dir, which no other process may use.
func openJournal(dir string) (*journal, error) {
	path := filepath.Join(dir, journalName)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) //nolint:gosec // the operator's own directory
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	if err := lockFile(file); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("lock journal %s: %w", path, err)
	}
	j := &journal{file: file, path: path, spare: 16 << 20, room: heldBytes, asides: asideBytes, wake: make(chan struct{}, 1)}
	if err := j.load(); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("read journal: %w", err)
	}
	return j, nil
}

func (j *journal) load() error {
	reader := bufio.NewReader(j.file)
	for {
		line, err := reader.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if _, ok := parseRecord(line); ok {
			j.queue(&entry{offset: j.end, length: len(line)})
			j.live += int64(len(line))
		}
		j.end += int64(len(line))
	}
	if err := j.file.Truncate(j.end); err != nil {
		return err
	}
	j.signal()
	return nil
}

// formatRecord writes r with gob, since header fields may hold bytes that no JSON string can.
func formatRecord(r *record) ([]byte, error) {
	var body bytes.Buffer
	if err := gob.NewEncoder(&body).Encode(r); err != nil {
		return nil, err
	}
	line := fmt.Appendf(nil, "%08x ", crc32.ChecksumIEEE(body.Bytes()))
	return append(base64.StdEncoding.AppendEncode(line, body.Bytes()), '\n'), nil
}

func parseRecord(line []byte) (*record, bool) {
	sum, text, ok := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if !ok || err != nil {
		return nil, false
	}
	body, err := base64.StdEncoding.AppendDecode(nil, text)
	if err != nil || uint64(crc32.ChecksumIEEE(body)) != want {
		return nil, false
	}
	r := &record{}
	return r, gob.NewDecoder(bytes.NewReader(body)).Decode(r) == nil
}

// append puts r on the disk. On an error kept says whether r is held in memory instead.
func (j *journal) append(r *record) (kept bool, err error) {
	line, err := formatRecord(r)
	if err != nil {
		return false, fmt.Errorf("append to journal: %w", err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.signal()
	if err := j.write(line); err != nil {
		return j.hold(r, len(line)), fmt.Errorf("append to journal: %w", err)
	}
	j.queue(&entry{offset: j.end, length: len(line)})
	j.end += int64(len(line))
	j.live += int64(len(line))
	return true, nil
}

// write puts line behind the last record. What is left of it after a failure is overwritten by the next one.
func (j *journal) write(line []byte) error {
	if _, err := j.file.WriteAt(line, j.end); err != nil {
		return err
	}
	return j.file.Sync()
}

func (j *journal) hold(r *record, length int) bool {
	if int64(length) > j.room {
		return false
	}
	j.room -= int64(length)
	j.queue(&entry{held: r, length: length})
	return true
}

func (j *journal) queue(entries ...*entry) {
	for _, e := range entries {
		j.pending = append(j.pending, e)
		if !e.told {
			j.waiting.Add(int64(e.length))
		}
	}
}

func (j *journal) unqueue() *entry {
	e := j.pending[0]
	j.pending = j.pending[1:]
	if !e.told {
		j.waiting.Add(-int64(e.length))
	}
	return e
}

func (j *journal) signal() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// oldest is the next record to deliver; nil when there is none.
func (j *journal) oldest() (*record, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.pending) == 0 {
		return nil, nil
	}
	e := j.pending[0]
	if e.held != nil {
		return e.held, nil
	}
	line := make([]byte, e.length)
	if _, err := j.file.ReadAt(line, e.offset); err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	r, ok := parseRecord(line)
	if !ok {
		return nil, errors.New("read journal: record is damaged")
	}
	return r, nil
}

// drop forgets the record that oldest has returned. Behind the last one the file is emptied.
func (j *journal) drop() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.forget(j.unqueue())
}

// setAside puts the record that oldest has returned behind all that can be delivered, until reconsider. first: it never was before. Where there is no
// room, the oldest ones that were set aside are dropped for it.
func (j *journal) setAside() (first bool, dropped int, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := j.unqueue()
	first, e.told = !e.told, true
	j.aside = append(j.aside, e)
	j.asides -= int64(e.length)
	for j.asides < 0 {
		oldest := j.aside[0]
		j.aside = j.aside[1:]
		j.asides += int64(oldest.length)
		dropped++
		err = errors.Join(err, j.forget(oldest))
	}
	return first, dropped, err
}

// reconsider makes what was set aside deliverable again.
func (j *journal) reconsider() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.aside) == 0 {
		return
	}
	for _, e := range j.aside {
		j.asides += int64(e.length)
	}
	j.queue(j.aside...)
	j.aside = nil
	j.signal()
}

// forget gives back the place of an entry that is in no list any more.
func (j *journal) forget(e *entry) error {
	if e.held != nil {
		j.room += int64(e.length)
		return nil
	}
	j.live -= int64(e.length)
	if j.live == 0 {
		j.end = 0
		if err := j.file.Truncate(0); err != nil {
			return fmt.Errorf("empty journal: %w", err)
		}
		return nil
	}
	return j.compact()
}

// compact cuts the delivered records off, so that a journal which is never quite empty does not grow for ever.
func (j *journal) compact() error {
	if j.end-j.live < j.spare {
		return nil
	}
	var filed []*entry
	for _, e := range append(slices.Clone(j.aside), j.pending...) {
		if e.held == nil {
			filed = append(filed, e)
		}
	}
	if err := j.rewrite(filed); err != nil {
		return fmt.Errorf("compact journal: %w", err)
	}
	j.end = 0
	for _, e := range filed {
		e.offset = j.end
		j.end += int64(e.length)
	}
	return nil
}

// rewrite puts the entries into a file that takes the journal's place.
func (j *journal) rewrite(filed []*entry) error {
	file, err := os.OpenFile(j.path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	for _, e := range filed {
		if _, copyErr := io.Copy(file, io.NewSectionReader(j.file, e.offset, int64(e.length))); copyErr != nil {
			err = copyErr
			break
		}
	}
	err = errors.Join(err, lockFile(file), file.Sync())
	if err == nil {
		err = os.Rename(file.Name(), j.path)
	}
	if err != nil {
		_ = file.Close()
		return err
	}
	_ = j.file.Close()
	j.file = file
	return nil
}

// size is the number of undelivered records, those set aside among them, and of their bytes.
func (j *journal) size() (records, aside int, bytes int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	bytes = heldBytes - j.room + j.live
	return len(j.pending) + len(j.aside), len(j.aside), bytes
}

func (j *journal) close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	_ = j.file.Close()
}
