// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore/redis"
	"github.com/idempotency-dev/operator/internal/localredis"
	"github.com/idempotency-dev/operator/internal/localredis/redistest"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// TestRedis: two sidecars with Redis execute a request once, also when one is killed, and refuse while Redis is away.
func TestRedis(t *testing.T) {
	server := redistest.Start(t, localredis.Options{})
	gate := newGate()
	w := newWorld(t, gate.ServeHTTP, func(c *proxyconfig.Config) { c.Store = proxyconfig.Store{Type: "Redis", OnUnavailable: "Reject"} })
	must(t, os.WriteFile(filepath.Join(w.dir, "dsn"), []byte("redis://"+server.Addr()+"\n"), 0o600))
	admin, err := redis.OpenAdmin("redis://" + server.Addr())
	must(t, err)
	defer admin.Close()
	_, err = admin.EnsureKeyspace(t.Context(), redis.Wanted{Name: "shop.payments", Window: time.Hour})
	must(t, err)
	first, second := w.proxy("first"), w.proxy("second")

	done := make(chan reply, 1)
	go func() { done <- first.post("key", `{}`) }()
	<-gate.inside
	if r := second.post("key", `{}`); r.status != http.StatusConflict {
		t.Errorf("in flight: %d %s %v", r.status, r.body, r.err)
	}
	if r := second.post("key", `{"other":1}`); r.status != http.StatusUnprocessableEntity {
		t.Errorf("another request: %d %s", r.status, r.body)
	}
	gate.leave <- struct{}{}
	if r := <-done; r.status != http.StatusCreated {
		t.Errorf("executed: %d %s %v", r.status, r.body, r.err)
	}
	if r := second.post("key", `{}`); r.status != http.StatusCreated || !r.replayed() || r.body != "done" {
		t.Errorf("replayed: %d %q %v", r.status, r.body, r.err)
	}

	go func() { done <- first.post("lost", `{}`) }()
	<-gate.inside
	must(t, first.cmd.Process.Kill())
	<-done
	gate.leave <- struct{}{}
	eventually(t, "the killed sidecar's request is unknown", func() bool {
		r := second.post("lost", `{}`)
		return r.status == http.StatusConflict && r.header.Get("Retry-After") == ""
	})
	w.executions(2)

	server.Kill()
	if r := second.post("away", `{}`); r.status != http.StatusServiceUnavailable {
		t.Errorf("while the store is away: %d %s", r.status, r.body)
	}
	must(t, server.Restart(t.Context(), nil))
	eventually(t, "the store is back", func() bool { r := second.post("key", `{}`); return r.status == http.StatusCreated && r.replayed() })
	w.executions(2)
}
