// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	dialTimeout = 5 * time.Second
	// An app may close a connection that was idle for a while just as a request is written to it, and nobody can tell then whether the request
	// took effect. The shortest such time of common servers is 2 s (gunicorn), so no connection is used that was idle for longer than this.
	upstreamIdle = time.Second
)

// upstream is the app.
type upstream struct {
	url       *url.URL
	transport *http.Transport
	shared    bool // a connection carries many requests at once
}

func newUpstream(u *url.URL, trust *tls.Config, connections int) *upstream {
	if trust == nil {
		trust = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	dialer := &net.Dialer{Timeout: dialTimeout}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &countedConn{Conn: conn}, nil
		},
		DisableCompression:     true, // bytes pass as they are
		MaxIdleConns:           connections,
		MaxIdleConnsPerHost:    connections,
		IdleConnTimeout:        upstreamIdle,
		TLSHandshakeTimeout:    dialTimeout,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: 1 << 20,
		TLSClientConfig:        trust,
		ReadBufferSize:         8 << 10,
		WriteBufferSize:        8 << 10,
	}
	transport.Protocols = new(http.Protocols)
	shared := u.Scheme == "h2c"
	if shared {
		clone := *u
		clone.Scheme = "http"
		u = &clone
		transport.Protocols.SetUnencryptedHTTP2(true)
	} else {
		transport.Protocols.SetHTTP1(true)
	}
	return &upstream{url: u, transport: transport, shared: shared}
}

// address is host and port.
func (u *upstream) address() string {
	if u.url.Port() != "" {
		return u.url.Host
	}
	return net.JoinHostPort(u.url.Hostname(), map[string]string{"http": "80", "https": "443"}[u.url.Scheme])
}

// send sends r once, until ctx ends. On an error untouched says that certainly no byte of it was sent.
func (u *upstream) send(ctx context.Context, r *http.Request) (response *http.Response, untouched bool, err error) {
	var conn *countedConn
	got, again := false, false
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if got && !u.shared && (conn == nil || conn.wrote()) {
			again = true // whatever the transport's reason: this connection takes nothing
			if second := counted(info.Conn); second != nil {
				second.seal()
			}
			return
		}
		got = true
		conn = counted(info.Conn)
		if conn != nil {
			conn.mark()
		}
	}}
	u.once(r)
	response, err = u.transport.RoundTrip(r.WithContext(httptrace.WithClientTrace(ctx, trace)))
	if err == nil {
		return response, false, nil
	}
	return nil, !got || !again && !u.shared && conn != nil && conn.seal(), err
}

// once makes r one that http.Transport does not send again by itself. It would, when the app closes the connection after reading the request or
// resets the stream, for a request without a body that it takes for idempotent or that goes over HTTP/2: https://go.dev/issue/19943
func (u *upstream) once(r *http.Request) {
	hideKey(r.Header)
	r.GetBody = nil
	if (u.shared || !mayAct(r.Method)) && (r.Body == nil || r.Body == http.NoBody) {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader("")), -1 // empty, but nobody knows, and it can be read once
	}
}

// mayAct is for all methods but those that ask for no effect: https://www.rfc-editor.org/rfc/rfc9110#section-9.2.1
func mayAct(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return false
	}
	return true
}

// hideKey respells the names by which http.Transport knows a request that it may repeat by itself, and an app does not tell the spellings apart.
func hideKey(header http.Header) {
	for _, name := range [...]struct{ canonical, spelled string }{{"Idempotency-Key", "Idempotency-key"}, {"X-Idempotency-Key", "X-Idempotency-key"}} {
		if values, ok := header[name.canonical]; ok {
			delete(header, name.canonical)
			header[name.spelled] = values
		}
	}
}

// errSealed stops a write that would make an answer untrue.
var errSealed = errors.New("connection is sealed")

// countedConn knows whether anything was written to it since a mark.
type countedConn struct {
	net.Conn
	mu      sync.Mutex
	written bool
	sealed  bool
}

func counted(conn net.Conn) *countedConn {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	c, _ := conn.(*countedConn)
	return c
}

func (c *countedConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sealed {
		return 0, errSealed
	}
	c.written = true // even when it fails: some of it may have gone
	return c.Conn.Write(p)
}

func (c *countedConn) mark() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written = false
}

func (c *countedConn) wrote() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.written
}

// seal reports whether nothing was written since the mark, and sees to it that nothing will be.
func (c *countedConn) seal() bool {
	// A write in progress may block for as long as the app does not read: it is a write all the same, and closing ends it.
	defer func() { _ = c.Close() }()
	if !c.mu.TryLock() {
		return false
	}
	defer c.mu.Unlock()
	c.sealed = true
	return !c.written
}
