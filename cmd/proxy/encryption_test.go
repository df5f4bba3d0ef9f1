// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/base64"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
)

// TestEncryption: with a key file the database holds neither body nor header, the log no key, another process replays to the byte, and one without
// the key neither replays nor executes.
func TestEncryption(t *testing.T) {
	var body [256]byte
	for i := range body {
		body[i] = byte(i)
	}
	w := newWorld(t, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Location", "/payments/4711")
		rw.Header().Set("Content-Disposition", "attachment; filename=\"caf\xe9\"")
		rw.WriteHeader(http.StatusCreated)
		_, _ = rw.Write(append(body[:], "payload-4711"...))
	})
	keys := filepath.Join(w.dir, "keys")
	key := base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))
	must(t, os.WriteFile(keys, []byte("# since 2026\n2026-11 "+key+"\n"), 0o600))
	first := w.proxy("a", "--encryption-key-file", keys, "--log-level", "debug")
	if got := first.post("k", `{}`); got.status != 201 || got.replayed() {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	got := w.proxy("b", "--encryption-key-file", keys).post("k", `{}`)
	if !got.replayed() || got.status != 201 || got.body != string(body[:])+"payload-4711" || got.header.Get("Location") != "/payments/4711" ||
		got.header.Get("Content-Disposition") != "attachment; filename=\"caf\xe9\"" {
		t.Errorf("replayed %d %q %v", got.status, got.body, got.header)
	}
	if got := w.proxy("c").post("k", `{}`); got.status != 409 || !strings.Contains(got.body, "answer-not-kept") {
		t.Errorf("without the key: %d %q", got.status, got.body)
	}
	w.executions(1)

	conn := pgtest.Connect(t, w.dsn)
	defer conn.Close(t.Context())
	var dump string
	everything := `SELECT string_agg(t::text || encode(header, 'escape') || encode(body, 'escape'), '') FROM idempotency.` + postgres.Relation("shop.payments") + ` t`
	must(t, conn.QueryRow(t.Context(), everything).Scan(&dump))
	for _, secret := range []string{"4711", "payments/", "Location", "attachment"} {
		if strings.Contains(dump, secret) {
			t.Errorf("%q is in the database: %s", secret, dump)
		}
	}
	if !strings.Contains(dump, "alice") {
		t.Errorf("this test cannot fail: the entry is not in %s", dump)
	}
	must(t, first.cmd.Process.Signal(os.Interrupt))
	if log := <-first.log; strings.Contains(log, key[:8]) || strings.Contains(log, "4711") {
		t.Errorf("a secret is in the log:\n%s", log)
	}
}
