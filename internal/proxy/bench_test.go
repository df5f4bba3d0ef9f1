// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
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
func BenchmarkExchange(b *testing.B) { benchmark(b, "/payments") }

// BenchmarkPassThrough is a request that no route matches.
func BenchmarkPassThrough(b *testing.B) { benchmark(b, "/elsewhere") }

func benchmark(b *testing.B, path string) {
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"id":1}`)
	}))
	defer app.Close()
	upstream, err := url.Parse(app.URL)
	if err != nil {
		b.Fatal(err)
	}
	p, err := New(Options{Upstream: upstream, Spool: b.TempDir(), Limits: DefaultLimits(), Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		b.Fatal(err)
	}
	p.Load(sampleConfig(), instantStore{}, "")
	defer func() { _ = p.Close(context.Background()) }()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(`{"amount":1200,"currency":"EUR"}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("X-Client-Id", "alice")
		r.Header.Set("Idempotency-Key", strconv.Itoa(i))
		w := httptest.NewRecorder()
		p.ServeHTTP(w, r)
		if w.Code != http.StatusCreated {
			b.Fatalf("got %d %s", w.Code, w.Body)
		}
	}
}
