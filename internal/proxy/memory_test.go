// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"sync"
	"testing"
)

// zeros is as many zero bytes as it is asked for, and counts what the heap holds while it gives them.
type zeros struct {
	mu   sync.Mutex
	peak uint64
}

func (z *zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func (z *zeros) look() {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	z.mu.Lock()
	defer z.mu.Unlock()
	z.peak = max(z.peak, stats.HeapAlloc)
}

// TestLargeBodiesNeedNoMemory: 1 GiB passes in each direction, on a route that is not enforced, and as an answer on one that is.
func TestLargeBodiesNeedNoMemory(t *testing.T) {
	const size, step, bound = 1 << 30, 64 << 20, 64 << 20
	source := &zeros{}
	r := start(t, func(s *setup) {
		s.app = func(w http.ResponseWriter, req *http.Request) {
			n, err := io.Copy(io.Discard, req.Body)
			if req.URL.Path == "/elsewhere" && (n != size || err != nil) {
				t.Errorf("the app got %d bytes, %v", n, err)
			}
			for range size / step {
				source.look()
				if _, err := io.CopyN(w, source, step); err != nil {
					t.Errorf("answer: %v", err)
					return
				}
			}
		}
	})
	source.look()
	before := source.peak
	for path, length := range map[string]int64{"/elsewhere": size, "/payments": 2} {
		req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, r.url+path, io.LimitReader(source, length))
		must(t, err)
		req.ContentLength = length
		req.Header.Set("X-Client-Id", "alice")
		req.Header["Idempotency-key"] = []string{"k"}
		resp, err := r.client.RoundTrip(req)
		must(t, err)
		n, err := io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if n != size || err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%s: got %d bytes, status %d, %v", path, n, resp.StatusCode, err)
		}
	}
	source.look()
	if grown := source.peak - before; grown > bound {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	if e := r.store.get("alice", "k"); e == nil || e.answer == nil || e.answer.Tombstone == "" {
		t.Error("an answer of 1 GiB is not recorded as one that was not kept")
	}
}
