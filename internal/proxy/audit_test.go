// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/idempotency-dev/operator/internal/keystore"
)

func auditing(s *setup) { s.config.Mode = "Audit" }

// counted is what the metrics say of requests by outcome.
func (r *rig) counted(t *testing.T, mode, outcome string) float64 {
	t.Helper()
	return testutil.ToFloat64(r.proxy.metrics.requests.WithLabelValues("create-payment", mode, outcome))
}

// TestAuditChangesNothing: every request reaches the app and gets its answer, and what enforce would have done is counted.
func TestAuditChangesNothing(t *testing.T) {
	for _, row := range []struct {
		name    string
		send    func(r *rig) reply
		outcome string
	}{
		{"first", func(r *rig) reply { return r.post("k", `{}`) }, "executed"},
		{"a retry", func(r *rig) reply { r.post("k", `{}`); return r.post("k", `{}`) }, "replayed"},
		{"another payload", func(r *rig) reply { r.post("k", `{}`); return r.post("k", `[]`) }, "mismatch"},
		{"no key", func(r *rig) reply { return r.post("", `{}`) }, "key_missing"},
		{"a bad key", func(r *rig) reply { return r.post(`"`, `{}`) }, "key_invalid"},
		{"no client", func(r *rig) reply { return r.post("k", `{}`, "-X-Client-Id", "") }, "client_unidentified"},
		{"a large body", func(r *rig) reply { return r.post("k", strings.Repeat("x", 2000)) }, "body_too_large"},
		{"a body with no room", func(r *rig) reply { return r.post("k", strings.Repeat("x", 900)) }, "overloaded"},
		{"an unknown outcome", func(r *rig) reply { r.orphan("k", `{}`); return r.post("k", `{}`) }, "unknown"},
		{"no store", func(r *rig) reply {
			r.store.failing(keystore.ErrUnavailable, "Reserve")
			return r.post("k", `{}`)
		}, "store_unavailable"},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := start(t, auditing, func(s *setup) {
				s.limits.BodyMemoryBytes, s.limits.BodyBytes, s.limits.SpillBytes = 100, 1000, 500
				s.app = func(w http.ResponseWriter, req *http.Request) {
					n, _ := io.Copy(io.Discard, req.Body)
					w.Header().Set("Set-Cookie", "a=b")
					w.WriteHeader(http.StatusCreated)
					_, _ = fmt.Fprint(w, n)
				}
			})
			got := row.send(r)
			want(t, got, 201, "", false)
			if got.Header.Get("Set-Cookie") != "a=b" || got.Body == "0" {
				t.Errorf("the answer is not the app's: %v %q", got.Header, got.Body)
			}
			if n := r.counted(t, "Audit", row.outcome); n != 1 {
				t.Errorf("counted %v times as %s", n, row.outcome)
			}
			eventually(t, "what bodies took is given back", func() bool { return r.proxy.memory.used.Load() == 0 && r.proxy.spool.files.used.Load() == 0 })
		})
	}
}

func TestAuditRecordsLikeEnforce(t *testing.T) {
	status := http.StatusServiceUnavailable
	r := start(t, auditing, func(s *setup) {
		s.app = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/payments/1")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "body")
		}
	})
	r.post("k", `{}`)
	if r.store.get("alice", "k") != nil {
		t.Error("an error of the app is not given back")
	}
	status = 201
	r.post("k", `{}`)
	e := r.store.get("alice", "k")
	if e == nil || e.answer == nil {
		t.Fatal("not recorded")
	}
	wantAnswer := &keystore.Answer{Status: 201, Header: http.Header{"Location": {"/payments/1"}, "Content-Type": {"text/plain; charset=utf-8"}}, Body: []byte("body")}
	if diff := cmp.Diff(wantAnswer, e.answer); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
	r.proxy.Load(sampleConfig(), nil, "")
	want(t, r.post("k", `{}`), 201, "", true)
}

func TestAuditOfAFailure(t *testing.T) {
	r := startRaw(t, closing, auditing)
	if got := r.post("k", `{}`); got.Status != 502 {
		t.Errorf("got %d", got.Status)
	}
	if e := r.store.get("alice", "k"); e == nil || !e.unknown {
		t.Error("not unknown")
	}
}

// TestPageEscapes: nothing that a policy says is markup.
func TestPageEscapes(t *testing.T) {
	config := sampleConfig()
	config.Routes[0].KeyPattern, config.Routes[0].FingerprintIgnore, config.Routes[0].FingerprintHeaders = `<script>"&'`, []string{"/<b>"}, []string{"X-<i>"}
	page := string(publish(config).page())
	for _, want := range []string{"&lt;script&gt;&#34;&amp;&#39;", "/&lt;b&gt;", "X-&lt;i&gt;", "1h0m0s", "1048576 bytes"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	if strings.Contains(page, "<script>") || strings.Contains(page, "%!") {
		t.Errorf("markup, or a missing text, in\n%s", page)
	}
}

func TestWellKnown(t *testing.T) {
	r := start(t)
	got, err := r.try("GET", wellKnownPath, "", "")
	must(t, err)
	var document publication
	must(t, json.Unmarshal([]byte(got.Body), &document))
	if diff := cmp.Diff(publish(sampleConfig()), document); diff != "" || got.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%s (-want +got):\n%s", got.Header.Get("Content-Type"), diff)
	}
	got, err = r.try("GET", wellKnownPath, "", "", "Accept", "text/html,*/*;q=0.8")
	must(t, err)
	if !strings.HasPrefix(got.Header.Get("Content-Type"), "text/html") || !strings.Contains(got.Body, "<code>/payments</code>") || got.Header.Get("Vary") != "Accept" {
		t.Errorf("got %v %s", got.Header, got.Body)
	}
	r.executions(0)
	got, err = r.try("POST", wellKnownPath, "", "")
	must(t, err)
	if got.Status != 201 {
		t.Errorf("POST is answered %d by the sidecar", got.Status)
	}
}
