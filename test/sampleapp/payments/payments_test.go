// SPDX-License-Identifier: Apache-2.0

package payments_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/idempotency-dev/operator/test/sampleapp/payments"
)

// post sends one payment to a service in process.
func post(s *payments.Service, client, key, body string) *http.Response {
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(body))
	r.Header.Set("X-Client-Id", client)
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Result()
}

func get(s *payments.Service, path string, header http.Header) (int, string) {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header = header
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestEveryPostIsANewPayment(t *testing.T) {
	s := payments.New()
	first := post(s, "alice", "k1", `{"amount":1200,"currency":"EUR"}`)
	second := post(s, "alice", "k1", `{"amount":1200,"currency":"EUR"}`)
	post(s, "alice", "", `{"amount":1,"currency":"EUR"}`)
	for _, r := range []*http.Response{first, second} {
		if r.StatusCode != http.StatusCreated || r.Header.Get("Location") == "" || r.Header.Get("ETag") == "" || r.Header.Get("Set-Cookie") == "" {
			t.Errorf("answer is %d %v", r.StatusCode, r.Header)
		}
	}
	if first.Header.Get("Location") == second.Header.Get("Location") || first.Header.Get("ETag") == second.Header.Get("ETag") {
		t.Errorf("two executions gave one payment: %v", first.Header)
	}
	status, body := get(s, first.Header.Get("Location"), nil)
	if made, _ := io.ReadAll(first.Body); status != http.StatusOK || body != string(made) {
		t.Errorf("GET of the payment: %d %q, made %q", status, body, made)
	}
	if diff := cmp.Diff(payments.Stats{Executions: 3, ByKey: map[string]int{"k1": 2}}, s.Stats()); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
	_, body = get(s, "/stats", nil)
	var stats payments.Stats
	if err := json.Unmarshal([]byte(body), &stats); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.Stats(), stats); diff != "" {
		t.Errorf("GET /stats (-want +got):\n%s", diff)
	}
}

func TestStatuses(t *testing.T) {
	s := payments.New()
	tests := []struct {
		reason, key, body string
		want              int
	}{
		{"not JSON", "", `{`, 400},
		{"no amount", "", `{"currency":"EUR"}`, 400},
		{"no currency", "", `{"amount":1}`, 400},
		{"fails once", "a", `{"amount":1,"currency":"EUR","simulate":{"status":503,"times":1}}`, 503},
		{"then succeeds", "a", `{"amount":1,"currency":"EUR","simulate":{"status":503,"times":1}}`, 201},
		{"another key fails by itself", `"b"`, `{"amount":1,"currency":"EUR","simulate":{"status":429,"times":1}}`, 429},
		{"quotes are not part of a key", "b", `{"amount":1,"currency":"EUR","simulate":{"status":429,"times":1}}`, 201},
		{"always fails", "c", `{"amount":1,"currency":"EUR","simulate":{"status":500}}`, 500},
		{"and again", "c", `{"amount":1,"currency":"EUR","simulate":{"status":500}}`, 500},
	}
	for _, tt := range tests {
		if got := post(s, "alice", tt.key, tt.body).StatusCode; got != tt.want {
			t.Errorf("%s: status %d, want %d", tt.reason, got, tt.want)
		}
	}
	if got := s.Stats().Executions; got != 6 {
		t.Errorf("%d executions, want 6: what is no payment is not executed", got)
	}
}

func TestSleepIsPartOfTheExecution(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := payments.New()
		start := time.Now()
		post(s, "alice", "k", `{"amount":1,"currency":"EUR","simulate":{"sleepMillis":300}}`)
		if got := time.Since(start); got != 300*time.Millisecond {
			t.Errorf("took %s, want 300ms of the test's clock", got)
		}
	})
}

func TestAbortHasMadeThePayment(t *testing.T) {
	s := payments.New()
	server := httptest.NewServer(s)
	defer server.Close()
	send := func() (*http.Response, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/payments", strings.NewReader(`{"amount":7,"currency":"EUR","simulate":{"abort":true,"times":1}}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{"X-Client-Id": {"alice"}, "Idempotency-Key": {"k"}}
		r.GetBody = nil // else the transport sends it again by itself
		return http.DefaultClient.Do(r)
	}
	if r, err := send(); !errors.Is(err, io.EOF) {
		t.Fatalf("the connection was not closed without an answer: %v %v", r, err)
	}
	alice := http.Header{"X-Client-Id": {"alice"}, "Idempotency-Key": {`"k"`}}
	if status, body := get(s, "/reconcile", alice); status != http.StatusOK || !strings.Contains(body, `"amount":7`) {
		t.Errorf("reconcile after the abort: %d %q", status, body)
	}
	bob := http.Header{"X-Client-Id": {"bob"}, "Idempotency-Key": {"k"}}
	if status, _ := get(s, "/reconcile", bob); status != http.StatusNotFound {
		t.Errorf("reconcile of another client: %d, want 404", status)
	}
	if r, err := send(); err != nil || r.StatusCode != http.StatusCreated {
		t.Errorf("second execution: %v %v", r, err)
	}
}

func TestNoteBytes(t *testing.T) {
	r := post(payments.New(), "alice", "k", `{"amount":1,"currency":"EUR","simulate":{"noteBytes":100000}}`)
	if body, _ := io.ReadAll(r.Body); r.StatusCode != http.StatusCreated || len(body) < 100000 {
		t.Errorf("status %d with %d bytes", r.StatusCode, len(body))
	}
}
