// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"net/http"
	"sync"
	"testing"

	"github.com/idempotency-dev/operator/internal/keystore"
)

func TestReplay(t *testing.T) {
	r := start(t)
	first := r.post("k1", `{"amount":1}`)
	want(t, first, 201, "", false)
	again := r.post(`"k1"`, `{ "amount": 1 }`)
	want(t, again, 201, "", true)
	if first.Body != again.Body {
		t.Errorf("bodies %q and %q differ", first.Body, again.Body)
	}
	want(t, r.post("k1", `{"amount":2}`), 422, "key-reused", false)
	r.executions(1)
}

func TestMismatchIsDecidedBeforeInFlight(t *testing.T) {
	inside, release := make(chan struct{}), make(chan struct{})
	r := start(t, func(s *setup) {
		s.app = func(w http.ResponseWriter, _ *http.Request) {
			close(inside)
			<-release
			w.WriteHeader(http.StatusCreated)
		}
	})
	var wg sync.WaitGroup
	wg.Go(func() { want(t, r.post("k", `{"a":1}`), 201, "", false) })
	<-inside
	want(t, r.post("k", `{"a":2}`), 422, "key-reused", false)
	inFlight := r.post("k", `{"a":1}`)
	want(t, inFlight, 409, "in-flight", false)
	if inFlight.Header.Get("Retry-After") == "" {
		t.Error("409 without Retry-After")
	}
	close(release)
	wg.Wait()
	r.executions(1)
}

func TestKeyMissing(t *testing.T) {
	r := start(t)
	want(t, r.post("", `{}`), 400, "key-missing", false)
	want(t, r.post("k", `{}`, "-X-Client-Id", ""), 401, "client-unidentified", false)
	r.executions(0)
}

func TestAppErrorGivesTheKeyBack(t *testing.T) {
	for _, row := range []struct {
		status int
		reason string
	}{
		{500, "the app says that it failed"},
		{503, "the app asks to try again"},
		{401, "a retry may carry other credentials"},
		{403, "access may be granted later"},
		{408, "the request did not arrive whole"},
		{425, "too early is not never"},
		{429, "the next one may be in time"},
	} {
		status := row.status
		r := start(t, func(s *setup) {
			s.app = func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				status = 201
			}
		})
		want(t, r.post("k", `{}`), row.status, "", false)
		want(t, r.post("k", `{}`), 201, "", false)
		want(t, r.post("k", `{}`), 201, "", true)
		if r.n.Load() != 2 {
			t.Errorf("%d: executed %d times: %s", row.status, r.n.Load(), row.reason)
		}
	}
}

func TestStoreDownExecutesNothing(t *testing.T) {
	r := start(t)
	r.store.failing(keystore.ErrUnavailable, "Reserve", "Check")
	for range 2 {
		got := r.post("k", `{}`)
		want(t, got, 503, "store-unavailable", false)
		if got.Header.Get("Retry-After") == "" {
			t.Error("503 without Retry-After")
		}
	}
	r.executions(0)
	r.store.failing(nil, "Reserve", "Check")
	eventually(t, "the store is used again", func() bool { return r.post("k", `{}`).Status == 201 })
	r.executions(1)
}

func TestCompletionFailsAfterTheEffect(t *testing.T) {
	r := start(t)
	r.store.failing(errors.Join(keystore.ErrUnavailable), "Complete")
	want(t, r.post("k", `{}`), 201, "", false)
	eventually(t, "the store is used again", func() bool { return r.post("k", `{}`).problem() == "in-flight" })
	r.store.failing(nil, "Complete")
	eventually(t, "the journal lands", func() bool { return r.post("k", `{}`).replayed() })
	r.executions(1)
}
