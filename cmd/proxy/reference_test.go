// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// TestReferenceFromTheDatabase: another process rebuilds an answer whose body was never recorded, with and without encryption.
func TestReferenceFromTheDatabase(t *testing.T) {
	for _, row := range []struct {
		name   string
		keys   string
		hidden bool
	}{{"in clear", "", false}, {"encrypted", "a " + base64.StdEncoding.EncodeToString(make([]byte, 32)), true}} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					rw.Header().Set("Location", "/payments/4711")
					rw.WriteHeader(http.StatusCreated)
				}
				fmt.Fprint(rw, r.Method, " payload")
			}, func(c *proxyconfig.Config) { c.Routes[0].ResponseStore = "Reference" })
			var args []string
			if row.keys != "" {
				path := filepath.Join(w.dir, "keys")
				must(t, os.WriteFile(path, []byte(row.keys+"\n"), 0o600))
				args = []string{"--encryption-key-file", path}
			}
			if got := w.proxy("a", args...).post("k", `{}`); got.status != 201 || got.body != "POST payload" || got.replayed() {
				t.Errorf("got %d %q", got.status, got.body)
			}
			got := w.proxy("b", args...).post("k", `{}`)
			if got.status != 201 || got.body != "GET payload" || !got.replayed() || got.header.Get("Location") != "/payments/4711" {
				t.Errorf("replayed %d %q %v", got.status, got.body, got.header)
			}
			w.executions(2) // one POST, one GET
			conn := pgtest.Connect(t, w.dsn)
			defer conn.Close(t.Context())
			var dump string
			everything := `SELECT string_agg(t::text || encode(header, 'escape') || coalesce(encode(body, 'escape'), ''), '') FROM idempotency.` + postgres.Relation("shop.payments") + ` t`
			must(t, conn.QueryRow(t.Context(), everything).Scan(&dump))
			if strings.Contains(dump, "payload") || strings.Contains(dump, "4711") == row.hidden || !strings.Contains(dump, "alice") {
				t.Errorf("recorded: %s", dump)
			}
		})
	}
}
