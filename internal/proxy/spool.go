// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
)

// spooled is a request's whole body, in memory or, its larger part, in a file that has no name any more.
type spooled struct {
	memory  []byte
	file    *os.File
	filed   int64  // bytes in file
	refused []byte // what was read and had no room
	digest  [sha256.Size]byte
	spool   *spool
	closed  sync.Once
}

// spool takes bodies in, within bounds that all requests share.
type spool struct {
	dir         string
	memoryBytes int64 // of one body
	bodyBytes   int64 // of one body
	memory      *budget
	files       *budget
	chunks      *chunks
}

// take reads the whole of r's body and its hash: errBodyTooLarge over the limit, errOverloaded when the shared bounds are reached,
// errBodyTimeout or errBodyIncomplete when the client does not send it. Then the body holds what was read, and is closed unless it is wanted.
func (s *spool) take(r *http.Request) (*spooled, error) {
	body := &spooled{spool: s}
	if r.ContentLength > s.bodyBytes {
		return body, body.tooLarge()
	}
	return body, body.read(r.Body)
}

func (b *spooled) read(from io.Reader) error {
	hash := sha256.New()
	chunk := b.spool.chunks.get()
	defer b.spool.chunks.put(chunk)
	for {
		n, err := from.Read(chunk[:])
		if n > 0 {
			_, _ = hash.Write(chunk[:n])
			if err := b.keep(chunk[:n]); err != nil {
				b.refused = bytes.Clone(chunk[:n])
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			hash.Sum(b.digest[:0])
			return nil
		}
		if err != nil {
			return bodyError(err)
		}
	}
}

func bodyError(err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, os.ErrDeadlineExceeded) {
		return errBodyTimeout
	}
	return errBodyIncomplete
}

func (b *spooled) size() int64 { return int64(len(b.memory)) + b.filed }

func (b *spooled) keep(chunk []byte) error {
	size := b.size() + int64(len(chunk))
	if size > b.spool.bodyBytes {
		return b.tooLarge()
	}
	if b.file == nil && size <= b.spool.memoryBytes && b.spool.memory.take(int64(len(chunk))) {
		b.memory = append(b.memory, chunk...)
		return nil
	}
	return b.spill(chunk)
}

func (b *spooled) tooLarge() error {
	return fmt.Errorf("%w: at most %d bytes", errBodyTooLarge, b.spool.bodyBytes)
}

func (b *spooled) spill(chunk []byte) error {
	if b.file == nil {
		file, err := os.CreateTemp(b.spool.dir, "body-*")
		if err != nil {
			return errNoRoom
		}
		b.file = file
		_ = os.Remove(file.Name()) // it lives as long as it is open, and not longer than this process
	}
	if !b.spool.files.take(int64(len(chunk))) {
		return errNoRoom
	}
	b.filed += int64(len(chunk))
	if _, err := b.file.Write(chunk); err != nil {
		return errNoRoom
	}
	return nil
}

var errNoRoom = fmt.Errorf("%w: no room for the body", errOverloaded)

// bytes is the whole body if it is at most limit bytes long.
func (b *spooled) bytes(limit int64) ([]byte, bool) {
	if b.size() > limit {
		return nil, false
	}
	if b.file == nil {
		return b.memory, true
	}
	all, err := io.ReadAll(b.reader())
	return all, err == nil
}

// reader reads the body from its beginning. There may be several.
func (b *spooled) reader() io.ReadCloser {
	if b.size() == 0 {
		return http.NoBody
	}
	if b.file == nil {
		return io.NopCloser(bytes.NewReader(b.memory))
	}
	return io.NopCloser(io.MultiReader(bytes.NewReader(b.memory), io.NewSectionReader(b.file, 0, b.filed)))
}

// withRest reads what was taken, then what was not. Closing it closes both.
func (b *spooled) withRest(rest io.ReadCloser) io.ReadCloser {
	return &resumed{io.MultiReader(b.reader(), bytes.NewReader(b.refused), rest), b, rest}
}

type resumed struct {
	io.Reader
	taken *spooled
	rest  io.Closer
}

func (r *resumed) Close() error {
	r.taken.close()
	return r.rest.Close()
}

// close gives back what the body took. A reader that is still in use, of a request that was answered before it was read, fails.
func (b *spooled) close() {
	b.closed.Do(func() {
		b.spool.memory.give(int64(len(b.memory)))
		b.spool.files.give(b.filed)
		if b.file != nil {
			_ = b.file.Close()
		}
	})
}
