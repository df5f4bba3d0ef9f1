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
	Client   string
	Key      string
	Token    keystore.Token
	Answer   *keystore.Answer
}

func (r *record) ownership() keystore.Ownership {
	return keystore.Ownership{Client: r.Client, Key: r.Key, Token: r.Token}
}

// journal is a file of records, one to a line behind its checksum, oldest first. A record is on the disk when append returns. A line that a crash
// cut short was never acknowledged and is dropped. What has been delivered stays in the file until all has, or the file is compacted:
// delivering a record twice changes nothing, since the store compares tokens.
//
// A record that the disk does not take is held in memory, and is lost when this process is killed before the store takes it.
type journal struct {
	mu      sync.Mutex
	file    *os.File
	path    string
	spare   int64        // bytes of delivered records that are cut off at once
	end     int64        // offset behind the last whole record
	pending []span       // undelivered records in the file, oldest first
	held    []*held      // undelivered records that are not in the file, oldest first
	room    int64        // bytes that may yet be held
	waiting atomic.Int64 // bytes from the oldest undelivered record on, and those held
	wake    chan struct{}
}

type held struct {
	*record
	length int
}

type span struct {
	offset int64
	length int
}

const (
	journalName = "journal"
	heldBytes   = 16 << 20
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
	j := &journal{file: file, path: path, spare: 16 << 20, room: heldBytes, wake: make(chan struct{}, 1)}
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
			j.pending = append(j.pending, span{j.end, len(line)})
		}
		j.end += int64(len(line))
	}
	if err := j.file.Truncate(j.end); err != nil {
		return err
	}
	j.measure()
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
	if err := j.write(line); err != nil {
		return j.hold(r, len(line)), fmt.Errorf("append to journal: %w", err)
	}
	j.pending = append(j.pending, span{j.end, len(line)})
	j.end += int64(len(line))
	j.measure()
	j.signal()
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
	j.held = append(j.held, &held{r, length})
	j.measure()
	j.signal()
	return true
}

func (j *journal) measure() {
	waiting := heldBytes - j.room
	if len(j.pending) > 0 {
		waiting += j.end - j.pending[0].offset
	}
	j.waiting.Store(waiting)
}

func (j *journal) signal() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// oldest is the next record to deliver: one that is held first, then the oldest in the file; nil when there is none.
func (j *journal) oldest() (*record, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.held) > 0 {
		return j.held[0].record, nil
	}
	if len(j.pending) == 0 {
		return nil, nil
	}
	line := make([]byte, j.pending[0].length)
	if _, err := j.file.ReadAt(line, j.pending[0].offset); err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	r, ok := parseRecord(line)
	if !ok {
		return nil, errors.New("read journal: record is damaged")
	}
	return r, nil
}

// drop forgets r, which oldest has returned; nil is the oldest record in the file. Behind the last one the file is emptied.
func (j *journal) drop(r *record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.measure()
	if len(j.held) > 0 && j.held[0].record == r {
		j.room += int64(j.held[0].length)
		j.held = j.held[1:]
		return nil
	}
	j.pending = j.pending[1:]
	if len(j.pending) > 0 {
		return j.compact()
	}
	j.pending, j.end = nil, 0
	if err := j.file.Truncate(0); err != nil {
		return fmt.Errorf("empty journal: %w", err)
	}
	return nil
}

// compact cuts the delivered records off, so that a journal which is never quite empty does not grow for ever.
func (j *journal) compact() error {
	start := j.pending[0].offset
	if start < j.spare {
		return nil
	}
	if err := j.rewrite(start); err != nil {
		return fmt.Errorf("compact journal: %w", err)
	}
	for i := range j.pending {
		j.pending[i].offset -= start
	}
	j.end -= start
	return nil
}

// rewrite puts what begins at start into a file that takes the journal's place.
func (j *journal) rewrite(start int64) error {
	file, err := os.OpenFile(j.path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, io.NewSectionReader(j.file, start, j.end-start))
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

// size is the number of undelivered records, and of their bytes.
func (j *journal) size() (records int, bytes int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.pending) + len(j.held), j.waiting.Load()
}

func (j *journal) close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	_ = j.file.Close()
}
