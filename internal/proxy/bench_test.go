// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// instantStore says New to everyone.
type instantStore struct{ absentStore }

func (instantStore) Reserve(context.Context, keystore.Reservation) (keystore.Decision, error) {
	return keystore.Decision{Outcome: keystore.New}, nil
}
func (instantStore) Complete(context.Context, keystore.Ownership, keystore.Answer) error { return nil }
func (instantStore) KeepAlive(context.Context, keystore.Holder, time.Duration) error     { return nil }

// BenchmarkExchange is what the chain costs beside the store: one enforced request with its answer, on sockets.
func BenchmarkExchange(b *testing.B) { benchmark(b, "/payments", sidecar) }

// BenchmarkPassThrough is a request that no route matches.
func BenchmarkPassThrough(b *testing.B) { benchmark(b, "/elsewhere", sidecar) }

// BenchmarkReverseProxy is what BenchmarkPassThrough is to be compared with.
func BenchmarkReverseProxy(b *testing.B) {
	benchmark(b, "/elsewhere", func(_ *testing.B, upstream *url.URL) http.Handler {
		return &httputil.ReverseProxy{
			Transport: &http.Transport{MaxIdleConns: 1024, MaxIdleConnsPerHost: 1024, DisableCompression: true},
			Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(upstream); r.SetXForwarded() },
		}
	})
}

func sidecar(b *testing.B, upstream *url.URL) http.Handler {
	p, err := New(Options{Upstream: upstream, Spool: b.TempDir(), Limits: DefaultLimits(), Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		b.Fatal(err)
	}
	p.Load(sampleConfig(), instantStore{}, "")
	b.Cleanup(func() { _ = p.Close(context.Background()) })
	return p
}

// benchmark sends payments through a handler to an app. Clients and app read and write no more than bytes, so that what is counted is the handler's.
func benchmark(b *testing.B, path string, make func(*testing.B, *url.URL) http.Handler) {
	app, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = app.Close() }()
	go acceptPayments(app)
	front := httptest.NewServer(make(b, &url.URL{Scheme: "http", Host: app.Addr().String()}))
	defer front.Close()
	var keys atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(8)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		conn, err := net.Dial("tcp", front.Listener.Addr().String())
		if err != nil {
			b.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		reader, out := bufio.NewReader(conn), []byte(nil)
		for pb.Next() {
			out = fmt.Appendf(out[:0], "POST %s HTTP/1.1\r\nHost: shop\r\nX-Client-Id: alice\r\nIdempotency-Key: %d\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
				path, keys.Add(1), len(paid), paid)
			if _, err := conn.Write(out); err != nil {
				b.Error(err)
				return
			}
			if status, err := message(reader, len(paid)); err != nil || !strings.HasPrefix(status, "HTTP/1.1 201") {
				b.Errorf("got %q, %v", status, err)
				return
			}
		}
	})
}

const paid = `{"amount":1200,"currency":"EUR"}`

func acceptPayments(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			answer := fmt.Appendf(nil, "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: %d\r\nLocation: /payments/1\r\n\r\n%s", len(paid), paid)
			for reader := bufio.NewReader(conn); ; {
				if _, err := message(reader, len(paid)); err != nil {
					return
				}
				if _, err := conn.Write(answer); err != nil {
					return
				}
			}
		}()
	}
}

// message reads a message with a body of n bytes and returns its first line.
func message(reader *bufio.Reader, n int) (first string, err error) {
	for i := 0; ; i++ {
		line, err := reader.ReadSlice('\n')
		if err != nil {
			return "", err
		}
		if i == 0 {
			first = string(line)
		}
		if len(line) == 2 {
			break
		}
	}
	_, err = reader.Discard(n)
	return first, err
}
