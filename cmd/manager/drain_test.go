// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

func TestDrainingServer(t *testing.T) {
	server := &drainingServer{Server: webhook.NewServer(webhook.Options{WebhookMux: http.NewServeMux()})}
	server.Register("/hook", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	connection := func() string {
		answer := httptest.NewRecorder()
		server.WebhookMux().ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/hook", nil))
		return answer.Header().Get("Connection")
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		lasting, cancel := server.outlive(ctx, 10*time.Second)
		defer cancel()
		if server.Check(nil) != nil || connection() != "" {
			t.Fatal("it drains before it is told to end")
		}
		stop()
		synctest.Wait()
		if server.Check(nil) == nil || connection() != "close" {
			t.Fatal("told to end, it keeps its callers")
		}
		begun := time.Now()
		<-lasting.Done()
		if waited := time.Since(begun); waited != 10*time.Second {
			t.Fatalf("it served on for %s", waited)
		}
	})
}

func TestDrainingServerEndsAtOnceWhenItsOwnerDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &drainingServer{}
		lasting, cancel := server.outlive(t.Context(), time.Hour)
		cancel()
		if lasting.Err() == nil || server.Check(nil) != nil {
			t.Fatal("it goes on, or drains")
		}
	})
}
