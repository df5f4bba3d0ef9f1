// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// patience is how long the beginning of an answer without a length is held back in the hope that its end comes with it.
const patience = 50 * time.Millisecond

// relay hands an answer on to the client and to the record. The client has the last of it only when the result is recorded: whoever sees the
// end of the answer finds the record in place. An answer whose length is known and fits the record is held back whole. One without a length
// flows, and its end is held back. One that is too large for the record or a stream flows too, and is recorded as a tombstone.
type relay struct {
	x        *exchange
	response *http.Response
	watch    *stopwatch
	keep     bool // record the body
	why      keystore.Tombstone
	limit    int64
	length   int64       // as declared; -1: unknown
	timer    *time.Timer // of patience

	mu      sync.Mutex // with the timer
	body    []byte     // what is to be recorded and, before started, to be sent
	total   int64
	started bool
	ended   bool
	gone    bool   // the client
	tail    []byte // held back until the result is recorded
}

func (x *exchange) relay(response *http.Response, watch *stopwatch) {
	y := &relay{x: x, response: response, watch: watch, keep: true, limit: x.route.ResponseMaxBytes, length: response.ContentLength}
	if bodyless(response.StatusCode) {
		y.length = 0
	}
	defer func() { x.proxy.memory.give(int64(cap(y.body))) }()
	y.begin()
	err := y.pump()
	y.end(err)
}

// begin decides how the answer flows.
func (y *relay) begin() {
	y.mu.Lock()
	defer y.mu.Unlock()
	switch {
	case y.x.refers(y.response):
		y.overflow(keystore.Referenced)
		y.start()
	case isStream(y.response.Header):
		y.overflow(keystore.Streamed)
		y.start()
	case y.length > y.limit:
		y.overflow(keystore.TooLarge)
		y.start()
	case y.length < 0:
		y.timer = time.AfterFunc(patience, y.impatient)
	}
}

// impatient is the end of patience.
func (y *relay) impatient() {
	y.mu.Lock()
	defer y.mu.Unlock()
	if !y.ended && !y.started {
		y.start()
	}
}

// overflow gives up on recording the body.
func (y *relay) overflow(why keystore.Tombstone) { y.keep, y.why = false, why }

// isStream is for media types that are sent piece by piece to whoever listens now.
func isStream(header http.Header) bool {
	mediaType, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil {
		return false
	}
	streams := []string{"text/event-stream", "application/x-ndjson", "application/stream+json", "application/json-seq", "multipart/x-mixed-replace"}
	return slices.Contains(streams, mediaType)
}

// pump reads the answer to its end; an error when it has none.
func (y *relay) pump() error {
	chunk := y.x.proxy.chunks.get()
	defer y.x.proxy.chunks.put(chunk)
	for {
		n, err := y.response.Body.Read(chunk[:])
		if n > 0 {
			y.take(chunk[:n])
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (y *relay) take(chunk []byte) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.total += int64(len(chunk))
	if y.keep && (y.total > y.limit || !y.grow(len(chunk))) {
		y.overflow(keystore.TooLarge)
		if !y.started {
			y.start()
		}
	}
	if y.keep {
		y.body = append(y.body, chunk...)
	}
	if !y.started {
		return
	}
	if y.length >= 0 && y.total >= y.length {
		y.tail = append(y.tail, chunk...)
		return
	}
	y.write(chunk)
}

// grow makes room for n more bytes as far as the memory that all share allows.
func (y *relay) grow(n int) bool {
	before := cap(y.body)
	if len(y.body)+n <= before {
		return true
	}
	want := max(2*before, len(y.body)+n, int(min(y.length, y.limit)))
	if !y.x.proxy.memory.take(int64(want - before)) {
		return false
	}
	body := make([]byte, len(y.body), want)
	copy(body, y.body)
	y.body = body
	return true
}

// start sends the header, and what there is of the body, before the result is recorded.
func (y *relay) start() {
	y.head()
	y.write(y.body)
}

// head sends the status and header, as they are but for what ends at this hop.
func (y *relay) head() {
	y.started = true
	header := y.x.w.Header()
	maps.Insert(header, endToEnd(y.response.Header))
	delete(header, headerReplayed)
	delete(header, headerStatus)
	if y.length < 0 {
		delete(header, "Content-Length")
	}
	y.x.w.WriteHeader(y.response.StatusCode)
}

// write sends p at once. A client that is gone, or does not take it in time, is given up on; the execution goes on.
func (y *relay) write(p []byte) {
	if y.gone {
		return
	}
	y.watch.pause() // the app is not to blame for a client that takes its time
	defer y.watch.resume()
	y.x.hurryClient()
	_, err := y.x.w.Write(p)
	if err == nil {
		err = y.x.control.Flush()
	}
	y.gone = err != nil && !errors.Is(err, http.ErrNotSupported)
	if !y.gone {
		_ = y.x.control.SetWriteDeadline(time.Time{}) // HTTP/2 would end the stream when it passes, also between two writes
	}
}

// hurryClient gives the client a time to take what is written next.
func (x *exchange) hurryClient() {
	_ = x.control.SetWriteDeadline(x.proxy.now().Add(x.proxy.limits.ClientTimeout)) // a writer without deadlines has its own bounds
}

// end records the result and sends what was held back.
func (y *relay) end(err error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.ended = true
	if y.timer != nil {
		y.timer.Stop()
	}
	if err != nil {
		y.truncated()
		return
	}
	y.x.conclude(y.response, y.answer())
	if !y.started {
		y.whole()
	}
	y.x.hurryClient() // net/http sends this, and the end of the message, when the handler returns
	if !y.gone && len(y.tail) > 0 {
		_, _ = y.x.w.Write(y.tail)
	}
	for name, values := range y.response.Trailer {
		if name != headerReplayed && name != headerStatus {
			y.x.w.Header()[http.TrailerPrefix+name] = values
		}
	}
	y.x.count("executed")
}

// whole sends the header of an answer that has been held back to its end. Only one with trailers flows even now: net/http gives it chunks to carry them.
func (y *relay) whole() {
	if len(y.response.Trailer) > 0 {
		y.length = -1
		y.start()
		return
	}
	y.length, y.tail = int64(len(y.body)), y.body
	if !bodyless(y.response.StatusCode) {
		y.response.Header.Set("Content-Length", strconv.Itoa(len(y.body)))
	}
	y.head()
}

// truncated ends an answer that has no end: the effect may be there or not. What the client has got of it must not look whole.
func (y *relay) truncated() {
	y.x.settle(opUnknown, nil)
	if !y.started && errors.Is(y.watch.cause(), errUpstreamTimeout) {
		y.x.refuse(errUpstreamTimeout)
		return
	}
	y.x.count(kindOf(errUpstreamFailed).outcome)
	panic(http.ErrAbortHandler)
}

// answer is what is recorded.
func (y *relay) answer() *keystore.Answer {
	if !y.keep {
		return y.x.route.unkept(y.response, y.why)
	}
	return y.x.route.answer(y.response, y.body)
}

// answer is the record of a response whose body has been read.
func (rt *route) answer(response *http.Response, body []byte) *keystore.Answer {
	header := rt.recorded(response.Header)
	for name, values := range rt.recorded(response.Trailer) {
		header[http.TrailerPrefix+name] = values
	}
	return &keystore.Answer{Status: response.StatusCode, Header: header, Body: body}
}

// conclude records an answer of the app, or gives the key back where its status asks for that.
func (x *exchange) conclude(response *http.Response, answer *keystore.Answer) {
	if x.route.stored(response.StatusCode) && !grpcFailed(response) {
		x.settle(opComplete, answer)
		return
	}
	x.settle(opRelease, nil)
}

// grpcFailed is for an error in gRPC's own status, which comes behind the body or, without one, in the header:
// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md#responses
func grpcFailed(response *http.Response) bool {
	for _, fields := range []http.Header{response.Header, response.Trailer} {
		if status := fields.Get("Grpc-Status"); status != "" && status != "0" {
			return true
		}
	}
	return false
}
