// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

func TestRunPrintsEveryResponse(t *testing.T) {
	var calls atomic.Int32
	both := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 2 {
			close(both)
		}
		<-both // answers only once two requests are here at a time
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Echo", r.Header.Get("Idempotency-Key"))
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, r.Method+" "+string(body))
	}))
	defer server.Close()

	var out bytes.Buffer
	err := run(t.Context(), []string{
		"-url", server.URL, "-method", "POST", "-header", "Idempotency-Key: a:b", "-body", "hello", "-count", "3", "-concurrency", "2",
	}, &out)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 {
		t.Fatalf("got %d lines, want 3: %s", len(lines), out.String())
	}
	for _, line := range lines {
		var r result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if r.Status != http.StatusCreated || r.Header.Get("Echo") != "a:b" || r.Body != "POST hello" || r.Error != "" {
			t.Errorf("got %+v", r)
		}
	}
}

func TestRunReportsARefusedConnection(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	url := server.URL
	server.Close()

	var out bytes.Buffer
	if err := run(t.Context(), []string{"-url", url}, &out); err != nil {
		t.Fatal(err)
	}
	var r result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if r.Error == "" || r.Status != 0 {
		t.Errorf("got %+v, want an error and no status", r)
	}
}

func TestRunRefusesBadFlags(t *testing.T) {
	for reason, args := range map[string][]string{
		"no url":             {},
		"no request to send": {"-url", "http://x", "-count", "0"},
		"nobody to send":     {"-url", "http://x", "-concurrency", "0"},
		"no header name":     {"-url", "http://x", "-header", "value"},
	} {
		if err := run(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%s: no error", reason)
		}
	}
}
