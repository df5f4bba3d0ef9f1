// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
)

// start runs the program on a free port and returns its URL, what stops it, and its end.
func start(t *testing.T, env func(string) string, args ...string) (url string, stop func(), ended <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	log, out := io.Pipe()
	result := make(chan error, 1)
	go func() {
		result <- run(ctx, args, env, out)
		_ = out.Close()
	}()
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		if _, address, found := strings.Cut(lines.Text(), "address="); found {
			go func() { _, _ = io.Copy(io.Discard, log) }()
			return "http://" + strings.Replace(address, "[::]", "127.0.0.1", 1), cancel, result
		}
	}
	t.Fatalf("it ended: %v", <-result)
	return "", nil, nil
}

func noEnv(string) string { return "" }

func TestRunDrains(t *testing.T) {
	url, stop, ended := start(t, noEnv, "--listen", "127.0.0.1:0")
	answered := make(chan *http.Response, 1)
	go func() {
		r, err := http.Post(url+"/payments", "application/json", strings.NewReader(`{"amount":1,"currency":"EUR","simulate":{"sleepMillis":300}}`))
		if err != nil {
			t.Errorf("request in flight: %v", err)
		}
		answered <- r
	}()
	for executions := ""; !strings.Contains(executions, `"executions":1`); {
		r, err := http.Get(url + "/stats")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(r.Body)
		executions = string(body)
	}
	stop()
	if r := <-answered; r == nil || r.StatusCode != http.StatusCreated {
		t.Errorf("request in flight at the signal: %v", r)
	}
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func TestRunListensOnPort(t *testing.T) {
	url, _, _ := start(t, func(name string) string { return map[string]string{"PORT": "0"}[name] })
	r, err := http.Get(url + "/healthz")
	if err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("healthz: %v %v", r, err)
	}
}

func TestRunRefuses(t *testing.T) {
	tests := []struct {
		reason string
		args   []string
	}{
		{"an unknown flag", []string{"--colour", "red"}},
		{"an address that is none", []string{"--listen", "127.0.0.1:x"}},
	}
	for _, tt := range tests {
		if err := run(t.Context(), tt.args, noEnv, io.Discard); err == nil {
			t.Errorf("%s: no error", tt.reason)
		}
	}
}
