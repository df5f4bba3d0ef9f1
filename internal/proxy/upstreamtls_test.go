// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"
)

// TestHTTPSUpstream: a private authority vouches for the app, or does not, and then nothing is executed and the key stays free.
func TestHTTPSUpstream(t *testing.T) {
	app := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }))
	defer app.Close()
	stranger := filepath.Join(t.TempDir(), "stranger.pem")
	ca := filepath.Join(t.TempDir(), "ca.pem")
	must(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: app.Certificate().Raw}), 0o600))
	must(t, os.WriteFile(stranger, []byte("no certificate"), 0o600))
	u, err := url.Parse(app.URL)
	must(t, err)
	if _, err := upstreamTLS(u, stranger, ""); err == nil {
		t.Error("a file without certificates is taken")
	}
	if _, err := upstreamTLS(u, stranger+"x", ""); err == nil {
		t.Error("a file that is not there is taken")
	}
	elsewhere := *u
	elsewhere.Host = "app.example:443"
	if trust, err := upstreamTLS(&elsewhere, "", ""); err != nil || trust.InsecureSkipVerify {
		t.Errorf("an app elsewhere is not verified: %v", err)
	}
	for _, row := range []struct {
		reason, ca, name string
		status           int
		problem          string
	}{
		{"on the loopback, and nobody asks", "", "", 201, ""},
		{"the authority vouches", ca, "", 201, ""},
		{"for this name, too", ca, "example.com", 201, ""},
		{"for another name it does not", ca, "other.invalid", 502, "upstream-unreachable"},
		{"the system's authorities know nothing of it", "", "example.com", 502, "upstream-unreachable"},
	} {
		r := start(t, func(s *setup) {
			s.url = app.URL
			s.trust, err = upstreamTLS(u, row.ca, row.name)
			must(t, err)
		})
		want(t, r.post("k", `{}`), row.status, row.problem, false)
		if e := r.store.get("alice", "k"); (e != nil) != (row.status == 201) {
			t.Errorf("%s: entry %v", row.reason, e)
		}
	}
}
