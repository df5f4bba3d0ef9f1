// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

// drainingServer is a webhook server that can be left without a call being lost.
//
// An API server goes on calling for as long as it does not know that the endpoint is going, and over connections that it has open. One that
// the server closes as idle while a call is on its way ends that call with EOF, and a pod then starts without its sidecar: both net/http's
// Shutdown and HTTP/2 do that to idle connections, https://pkg.go.dev/net/http#Server.Shutdown. So this one first serves on for a while, and
// asks whoever calls to come by another connection next time. HTTP/2 turns that into GOAWAY.
type drainingServer struct {
	webhook.Server
	draining atomic.Bool
}

// Register serves hook at path.
func (s *drainingServer) Register(path string, hook http.Handler) {
	s.Server.Register(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		hook.ServeHTTP(w, r)
	}))
}

// Check is a readiness check: it fails as soon as the server drains.
func (s *drainingServer) Check(*http.Request) error {
	if s.draining.Load() {
		return errors.New("draining")
	}
	return nil
}

// outlive returns a context that ends delay after ctx does; the server drains in between. The caller calls cancel at the latest when it
// returns.
func (s *drainingServer) outlive(ctx context.Context, delay time.Duration) (lasting context.Context, cancel context.CancelFunc) {
	lasting, cancel = context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		s.draining.Store(true)
		end := time.AfterFunc(delay, cancel)
		context.AfterFunc(lasting, func() { end.Stop() })
	})
	return lasting, cancel
}
