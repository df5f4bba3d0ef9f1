// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// rawApp is an app that speaks in bytes. It counts whole requests; answer gets each with its connection, which ends afterwards unless answer
// says to keep it.
func (r *rig) rawApp(answer func(n int64, conn net.Conn, req *http.Request) (keep bool)) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(r.t, err)
	r.t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				reader := bufio.NewReader(conn)
				for {
					req, err := http.ReadRequest(reader)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					if !answer(r.n.Add(1), conn, req) {
						return
					}
				}
			}()
		}
	}()
	return "http://" + listener.Addr().String()
}

// startRaw is start with a rawApp.
func startRaw(t *testing.T, answer func(n int64, conn net.Conn, req *http.Request) bool, change ...func(*setup)) *rig {
	t.Helper()
	app := &rig{t: t}
	address := app.rawApp(answer)
	r := start(t, append(change, func(s *setup) { s.url = address })...)
	r.counter = app
	return r
}

func TestAppDiesAfterReadingOverKeepAlive(t *testing.T) {
	for _, row := range []struct {
		method, path, body string
		reason             string
	}{
		{"POST", "/payments", "", "net/http repeats a request without a body that has a key"},
		{"POST", "/payments", `{"a":1}`, "net/http repeats a request whose body it can get again"},
		{"POST", "/elsewhere", "", "what is not enforced is not repeated either"},
		{"POST", "/elsewhere", `{"a":1}`, "nor with a body"},
		{"GET", "/payments", "", "net/http repeats a GET, and the app takes it for a POST"},
		{"GET", "/elsewhere", "", "also where nothing is enforced"},
	} {
		t.Run(fmt.Sprintf("%s%s%d", row.method, row.path, len(row.body)), func(t *testing.T) {
			r := startRaw(t, func(n int64, conn net.Conn, _ *http.Request) bool {
				if n == 1 { // makes the connection one that has been used before
					_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
				return n == 1
			})
			_, err := r.try(row.method, row.path, "k1", row.body, "X-HTTP-Method-Override", "POST")
			must(t, err)
			got, err := r.try(row.method, row.path, "k2", row.body, "X-Idempotency-Key", "k2", "X-HTTP-Method-Override", "POST")
			must(t, err)
			if got.Status != 502 {
				t.Errorf("got %d, want 502", got.Status)
			}
			if n := r.counter.n.Load(); n != 2 {
				t.Errorf("the app saw %d requests, want 2: %s", n, row.reason)
			}
		})
	}
}

// TestAppResetsTheStream: over HTTP/2, net/http repeats a request without a body that the app ends with PROTOCOL_ERROR.
func TestAppResetsTheStream(t *testing.T) {
	for _, path := range []string{"/payments", "/elsewhere"} {
		requests := make(chan struct{}, 10)
		r := start(t, func(s *setup) { s.url = resettingApp(t, requests) })
		got, err := r.try("POST", path, "k", "")
		must(t, err)
		if got.Status != 502 {
			t.Errorf("got %d, want 502", got.Status)
		}
		if n := len(requests); n != 1 {
			t.Errorf("the app saw %d requests of %s, want 1", n, path)
		}
		if path == "/payments" {
			want(t, r.post("k", ""), 409, "outcome-unknown", false)
		}
	}
}

// resettingApp speaks HTTP/2 and resets every stream: https://www.rfc-editor.org/rfc/rfc9113#section-6.4
func resettingApp(t *testing.T, requests chan<- struct{}) string {
	const headers, reset, settings = 1, 3, 4
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	serve := func(conn net.Conn) {
		defer conn.Close()
		_, _ = io.CopyN(io.Discard, conn, int64(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")))
		_, _ = conn.Write([]byte{0, 0, 0, settings, 0, 0, 0, 0, 0})
		frame := make([]byte, 9)
		for {
			if _, err := io.ReadFull(conn, frame); err != nil {
				return
			}
			_, _ = io.CopyN(io.Discard, conn, int64(frame[0])<<16|int64(frame[1])<<8|int64(frame[2]))
			switch {
			case frame[3] == settings && frame[4] == 0:
				_, _ = conn.Write([]byte{0, 0, 0, settings, 1, 0, 0, 0, 0})
			case frame[3] == headers:
				requests <- struct{}{}
				_, _ = conn.Write([]byte{0, 0, 4, reset, 0, frame[5], frame[6], frame[7], frame[8], 0, 0, 0, 1})
			}
		}
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return "h2c://" + listener.Addr().String()
}

// TestUpstreamFaults: every way in which an app can fail ends the reservation.
func TestUpstreamFaults(t *testing.T) {
	for _, row := range []struct {
		name    string
		answer  string // what is written before the connection ends
		problem string // "" when the client's connection is aborted
		second  string // problem of the retry
	}{
		{"closes without a word", "", "upstream-failed", "outcome-unknown"},
		{"ends within the header", "HTTP/1.1 201 Created\r\nContent-Le", "upstream-failed", "outcome-unknown"},
		{"speaks another language", "SSH-2.0-OpenSSH\r\n\r\n", "upstream-failed", "outcome-unknown"},
		{"switches protocols unasked", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", "upstream-failed", "outcome-unknown"},
		{"ends within a body of known length", "HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\n" + strings.Repeat("x", 40), "", "outcome-unknown"},
		{"ends within a chunked body", "HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "", "outcome-unknown"},
		{"ends within a body over the limit", "HTTP/1.1 201 Created\r\nContent-Length: 5000\r\n\r\n" + strings.Repeat("x", 3000), "", "outcome-unknown"},
		{"ends within a stream", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "", "outcome-unknown"},
		{"ends within its own error", "HTTP/1.1 500 Oops\r\nContent-Length: 100\r\n\r\n" + strings.Repeat("x", 40), "", "outcome-unknown"},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := startRaw(t, func(_ int64, conn net.Conn, _ *http.Request) bool {
				_, _ = io.WriteString(conn, row.answer)
				return false
			}, func(s *setup) { s.config.Routes[0].ResponseMaxBytes = 1000 })
			got, err := r.try("POST", "/payments", "k", `{}`)
			if aborted := err != nil || got.Err != nil; aborted != (row.problem == "") || got.problem() != row.problem {
				t.Errorf("got %d %q, error %v and %v; want %q", got.Status, got.problem(), err, got.Err, row.problem)
			}
			want(t, r.post("k", `{}`), 409, row.second, false)
			if n := r.counter.n.Load(); n != 1 {
				t.Errorf("executed %d times", n)
			}
		})
	}
}

func TestRefusedConnectionGivesTheKeyBack(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := listener.Addr().String()
	listener.Close()
	r := start(t, func(s *setup) { s.url = "http://" + address })
	got := r.post("k", `{}`)
	want(t, got, 502, "upstream-unreachable", false)
	if r.store.get("alice", "k") != nil {
		t.Error("the reservation is still there")
	}
}

func TestTimeoutIsUnknown(t *testing.T) {
	leave := make(chan struct{})
	r := start(t, func(s *setup) {
		s.config.Routes[0].TimeoutMillis = 100
		s.app = func(w http.ResponseWriter, _ *http.Request) {
			<-leave
			w.WriteHeader(http.StatusCreated)
		}
	})
	defer close(leave)
	want(t, r.post("k", `{}`), 504, "upstream-timeout", false)
	want(t, r.post("k", `{}`), 409, "outcome-unknown", false)
	r.executions(1)
}

func TestTimeoutWithinTheBodyIsUnknown(t *testing.T) {
	leave := make(chan struct{})
	r := start(t, func(s *setup) {
		s.config.Routes[0].TimeoutMillis = 100
		s.app = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			w.WriteHeader(http.StatusCreated)
			_ = http.NewResponseController(w).Flush()
			<-leave
		}
	})
	defer close(leave)
	want(t, r.post("k", `{}`), 504, "upstream-timeout", false)
	want(t, r.post("k", `{}`), 409, "outcome-unknown", false)
}

func TestSealedConnection(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	conn := &countedConn{Conn: near}
	go func() { _, _ = io.Copy(io.Discard, far) }()
	_, err := conn.Write([]byte("earlier request"))
	must(t, err)
	conn.mark()
	if !conn.seal() {
		t.Error("nothing was written since the mark, and it says that something was")
	}
	if _, err := conn.Write([]byte("late")); err == nil {
		t.Error("a sealed connection took a write")
	}
}

func TestSealWhileWriting(t *testing.T) {
	near, far := net.Pipe() // a write blocks for ever: nobody reads
	defer far.Close()
	conn := &countedConn{Conn: near}
	conn.mark()
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = conn.Write([]byte("request"))
	}()
	eventually(t, "the write begins", func() bool {
		if conn.mu.TryLock() {
			conn.mu.Unlock()
			return false
		}
		return true
	})
	if conn.seal() {
		t.Error("a write is in progress, and it says that nothing was written")
	}
	<-written
}

func TestRequestReachesTheAppAsItWas(t *testing.T) {
	seen := make(chan *http.Request, 1)
	r := startRaw(t, func(_ int64, conn net.Conn, req *http.Request) bool {
		seen <- req
		_, _ = io.WriteString(conn, "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
		return true
	}, func(s *setup) { s.config.Routes[0].Path = "/payments/{id...}" })
	for i, target := range []string{"/payments/a%2Fb?b=1&a=%zz;x", "/payments/%C3%A9", "/payments//x", "http://shop/payments/absolute"} {
		got := r.raw("POST " + target + " HTTP/1.1\nHost: shop\nX-Client-Id: alice\nIdempotency-Key: k" + strconv.Itoa(i) +
			"\nContent-Length: 0\nConnection: close, X-Hop\nX-Hop: 1\nTE: trailers\nIdempotency-Reservation: mine\nIdempotency-Seed: mine\nX-Forwarded-For: 203.0.113.7\n\n")
		if got.Status != 201 {
			t.Fatalf("%s: got %d %s", target, got.Status, got.Body)
		}
		req := <-seen
		if req.RequestURI != strings.TrimPrefix(target, "http://shop") || req.Host != "shop" {
			t.Errorf("the app got %q for %q, host %q", req.RequestURI, target, req.Host)
		}
		if req.Header.Get("X-Hop") != "" || req.Header.Get("Te") != "trailers" {
			t.Errorf("hop-by-hop fields are wrong: %v", req.Header)
		}
		const names = ".c2hvcC5wYXltZW50cw==.YWxpY2U=." // the keyspace and the client
		if got := req.Header["Idempotency-Reservation"]; len(got) != 1 || strings.Index(got[0], names) != 32 {
			t.Errorf("reservation %q", got)
		}
		if got := req.Header["Idempotency-Seed"]; len(got) != 1 || len(got[0]) != 36 {
			t.Errorf("seed %q", got)
		}
		if got := req.Header.Get("X-Forwarded-For"); got != "203.0.113.7, 127.0.0.1" {
			t.Errorf("X-Forwarded-For %q", got)
		}
		if len(req.TransferEncoding) > 0 || req.Header.Get("Content-Length") != "0" {
			t.Errorf("an empty body came as %v %v", req.TransferEncoding, req.Header)
		}
	}
}
