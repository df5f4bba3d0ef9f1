// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/idempotency-dev/operator/internal/keystore"
)

func zipped(text string) string {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return out.String()
}

// TestReplayFidelity: a replay has the bytes and the header of the answer that speak of the effect, and nothing that speaks of one exchange.
func TestReplayFidelity(t *testing.T) {
	for _, row := range []struct {
		name   string
		status int
		header http.Header
		body   string
		kept   http.Header
	}{
		{"gzip", 201, http.Header{"Content-Encoding": {"gzip"}, "Vary": {"Accept-Encoding"}, "Content-Type": {"text/plain"}}, zipped("hello"),
			http.Header{"Content-Encoding": {"gzip"}, "Vary": {"Accept-Encoding"}, "Content-Type": {"text/plain"}}},
		{"gzip bytes that call themselves JSON", 200, http.Header{"Content-Type": {"application/json"}}, zipped("hello"), http.Header{"Content-Type": {"application/json"}}},
		{"fields of one exchange", 200, http.Header{
			"Set-Cookie": {"session=1"}, "Date": {"Thu, 01 Jan 1970 00:00:00 GMT"}, "X-Request-Id": {"1"}, "X-Ratelimit-Remaining": {"1"}, "Ratelimit": {"1"},
			"Access-Control-Allow-Origin": {"*"}, "Content-Type": {"a/b"}, "X-Hop": {"1"}, "Connection": {"X-Hop"}}, "x", http.Header{"Content-Type": {"a/b"}}},
		{"created", 201, http.Header{"Location": {"/payments/1"}, "Etag": {`"1"`}, "Content-Type": {"application/problem+json; charset=utf-8"}}, "{}",
			http.Header{"Location": {"/payments/1"}, "Etag": {`"1"`}, "Content-Type": {"application/problem+json; charset=utf-8"}}},
		{"chosen field", 200, http.Header{"X-Payment": {"1", "2"}, "Content-Type": {"text/csv"}}, "a,b\n", http.Header{"X-Payment": {"1", "2"}, "Content-Type": {"text/csv"}}},
		{"see other is not followed", 303, http.Header{"Location": {"/payments/1"}}, "", http.Header{"Location": {"/payments/1"}}},
		{"temporary redirect is not followed", 307, http.Header{"Location": {"/payments"}}, "", http.Header{"Location": {"/payments"}}},
		{"no content", 204, http.Header{"Etag": {`"2"`}}, "", http.Header{"Etag": {`"2"`}}},
		{"not modified", 304, http.Header{"Etag": {`"2"`}}, "", http.Header{"Etag": {`"2"`}}},
		{"the caller's fault", 422, http.Header{"Content-Type": {"application/json"}, "Retry-After": {"9"}}, `{"e":1}`, http.Header{"Content-Type": {"application/json"}, "Retry-After": {"9"}}},
		{"the app believes it replays", 200, http.Header{"Idempotent-Replayed": {"true"}, "Content-Type": {"a/b"}}, "x", http.Header{"Content-Type": {"a/b"}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := start(t, func(s *setup) {
				s.config.Routes[0].ResponseHeaders = []string{"X-Payment"}
				s.app = func(w http.ResponseWriter, _ *http.Request) {
					for name, values := range row.header {
						w.Header()[name] = values
					}
					w.WriteHeader(row.status)
					_, _ = io.WriteString(w, row.body)
				}
			})
			first := r.post("k", `{}`)
			again := r.post("k", `{}`)
			if first.replayed() || !again.replayed() {
				t.Errorf("replayed: %v, then %v", first.replayed(), again.replayed())
			}
			if first.Body != row.body || again.Body != row.body || first.Status != row.status || again.Status != row.status {
				t.Errorf("got %d %q, then %d %q", first.Status, first.Body, again.Status, again.Body)
			}
			for _, name := range []string{headerReplayed, "Content-Length"} {
				again.Header.Del(name)
			}
			if date := again.Header.Get("Date"); date == "" || date == "Thu, 01 Jan 1970 00:00:00 GMT" {
				t.Errorf("date of the replay is %q", date)
			}
			again.Header.Del("Date")
			if diff := cmp.Diff(row.kept, again.Header); diff != "" {
				t.Errorf("header (-want +got):\n%s", diff)
			}
			r.executions(1)
		})
	}
}

func TestAnswersAroundTheLimit(t *testing.T) {
	for _, row := range []struct {
		bytes    int
		declared bool
		kept     bool
	}{{99, true, true}, {100, true, true}, {101, true, false}, {99, false, true}, {100, false, true}, {101, false, false}, {100_000, true, false}, {100_000, false, false}} {
		r := start(t, func(s *setup) {
			s.config.Routes[0].ResponseMaxBytes = 100
			s.app = func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusCreated)
				if !row.declared {
					_ = http.NewResponseController(w).Flush()
				}
				_, _ = io.WriteString(w, strings.Repeat("x", row.bytes))
			}
		})
		first := r.post("k", `{}`)
		want(t, first, 201, "", false)
		if len(first.Body) != row.bytes {
			t.Errorf("%+v: first caller got %d bytes", row, len(first.Body))
		}
		again := r.post("k", `{}`)
		if row.kept {
			want(t, again, 201, "", true)
		} else {
			want(t, again, 409, "answer-not-kept", false)
			if !strings.Contains(again.Body, `"originalStatus":201`) {
				t.Errorf("the original status is not told: %s", again.Body)
			}
		}
		r.executions(1)
	}
}

// TestRecordedBeforeTheLastByte: whoever sees the end of an answer finds it recorded, however slow the store.
func TestRecordedBeforeTheLastByte(t *testing.T) {
	for _, row := range []struct {
		name string
		app  http.HandlerFunc
	}{
		{"known length", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "done") }},
		{"chunked", func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, "done")
		}},
		{"over the limit", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "200000")
			_, _ = io.WriteString(w, strings.Repeat("x", 200_000))
		}},
		{"stream", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: 1\n\n")
		}},
		{"no body", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := start(t, func(s *setup) {
				s.config.Routes[0].ResponseMaxBytes = 100_000
				s.app = row.app
			})
			hold := make(chan struct{})
			r.store.hook("Complete", func() { <-hold })
			answered := make(chan reply, 1)
			go func() { answered <- r.post("k", `{}`) }()
			eventually(t, "the record begins", func() bool { return r.store.count("Complete") == 1 })
			select {
			case got := <-answered:
				t.Fatalf("answered %d with %d bytes before the record was there", got.Status, len(got.Body))
			case <-time.After(3 * patience): // enough for every timer of the relay
			}
			close(hold)
			if got := <-answered; got.Err != nil || got.Status >= 300 {
				t.Fatalf("got %d, error %v", got.Status, got.Err)
			}
			if e := r.store.get("alice", "k"); e == nil || e.answer == nil {
				t.Error("answered and not recorded")
			}
		})
	}
}

// TestStreamFlows: events reach the client as they are sent; a retry gets a defined error.
func TestStreamFlows(t *testing.T) {
	for _, mediaType := range []string{"text/event-stream", "application/octet-stream"} {
		next := make(chan string)
		r := start(t, func(s *setup) {
			s.app = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", mediaType)
				control := http.NewResponseController(w)
				_ = control.Flush()
				for event := range next {
					_, _ = io.WriteString(w, event)
					_ = control.Flush()
				}
			}
		})
		req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, r.url+"/payments", strings.NewReader("{}"))
		must(t, err)
		req.Header.Set("X-Client-Id", "alice")
		req.Header.Set("Idempotency-Key", "k")
		resp, err := http.DefaultTransport.RoundTrip(req)
		must(t, err)
		lines := bufio.NewReader(resp.Body)
		for _, event := range []string{"data: 1\n", "data: 2\n"} {
			next <- event
			got, err := lines.ReadString('\n')
			if err != nil || got != event {
				t.Fatalf("%s: got %q %v", mediaType, got, err)
			}
		}
		want(t, r.retry(), 409, "in-flight", false)
		close(next)
		_, err = io.Copy(io.Discard, resp.Body)
		must(t, err)
		resp.Body.Close()
		if mediaType == "text/event-stream" {
			want(t, r.retry(), 409, "answer-not-kept", false)
		} else {
			want(t, r.retry(), 200, "", true)
		}
		r.executions(1)
	}
}

// retry is the request of TestStreamFlows once more.
func (r *rig) retry() reply { return r.post("k", "{}", "-Content-Type", "") }

func TestStatusRules(t *testing.T) {
	for _, row := range []struct {
		status int
		rule   string
		stored bool
	}{{200, "", true}, {404, "", true}, {422, "Release", false}, {503, "Store", true}, {429, "Store", true}, {502, "", false}, {201, "Release", false}} {
		r := start(t, func(s *setup) {
			if row.rule != "" {
				s.config.Routes[0].StatusRules = map[int]string{row.status: row.rule}
			}
			s.app = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(row.status) }
		})
		r.post("k", `{}`)
		if got := r.post("k", `{}`); got.replayed() != row.stored {
			t.Errorf("%+v: replayed %v", row, got.replayed())
		}
	}
}

func TestTrailersAreReplayed(t *testing.T) {
	for _, row := range []struct {
		grpc     string
		replayed bool
		reason   string
	}{{"0", true, "a success is kept with its status"}, {"14", false, "an error of gRPC is one of the app"}} {
		r := start(t, func(s *setup) {
			s.app = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/grpc")
				_, _ = io.WriteString(w, "message")
				_ = http.NewResponseController(w).Flush()
				w.Header().Set(http.TrailerPrefix+"Grpc-Status", row.grpc)
			}
		})
		first, again := r.post("k", `{}`), r.post("k", `{}`)
		if first.Trailer.Get("Grpc-Status") != row.grpc || again.Trailer.Get("Grpc-Status") != row.grpc || again.Body != "message" {
			t.Errorf("trailers %v, then %v, body %q", first.Trailer, again.Trailer, again.Body)
		}
		if again.replayed() != row.replayed {
			t.Errorf("grpc-status %s: replayed %v: %s", row.grpc, again.replayed(), row.reason)
		}
	}
}

// TestTrailersAreRecordedLikeHeaders: what belongs to the first caller alone is not replayed, wherever it stands.
func TestTrailersAreRecordedLikeHeaders(t *testing.T) {
	r := start(t, func(s *setup) {
		s.config.Routes[0].ResponseHeaders = []string{"X-Sum"}
		s.app = func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "message")
			_ = http.NewResponseController(w).Flush()
			for _, name := range []string{"X-Sum", "X-Other", "Set-Cookie", "Grpc-Message", headerReplayed} {
				w.Header().Set(http.TrailerPrefix+name, "1")
			}
		}
	})
	first, again := r.post("k", `{}`), r.post("k", `{}`)
	if diff := cmp.Diff(http.Header{"X-Sum": {"1"}, "X-Other": {"1"}, "Set-Cookie": {"1"}, "Grpc-Message": {"1"}}, first.Trailer); diff != "" {
		t.Errorf("trailers of the first answer (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(http.Header{"X-Sum": {"1"}, "Grpc-Message": {"1"}}, again.Trailer); diff != "" || !again.replayed() {
		t.Errorf("replayed %v, trailers (-want +got):\n%s", again.replayed(), diff)
	}
}

// TestOthersAreNotTouched: what is not enforced passes, with a key or without.
func TestOthersAreNotTouched(t *testing.T) {
	r := start(t)
	for _, row := range []struct{ method, path, reason string }{
		{"GET", "/payments", "a read is not recorded"},
		{"HEAD", "/payments", "nor is its header"},
		{"OPTIONS", "/payments", "a browser asks without a key"},
		{"POST", "/refunds", "no route"},
		{"PUT", "/payments", "not a method of the route"},
	} {
		for range 2 {
			got, err := r.try(row.method, row.path, "k", "")
			must(t, err)
			if got.replayed() || got.Status != 201 {
				t.Errorf("%s %s: %d replayed %v: %s", row.method, row.path, got.Status, got.replayed(), row.reason)
			}
		}
	}
	r.executions(10)
	if n := r.store.count("Reserve"); n != 0 {
		t.Errorf("the store was asked %d times", n)
	}
}

func TestAnswerRecordedByTheAppIsReplayed(t *testing.T) {
	r := start(t)
	r.store.hook("MarkUnknown", func() {
		e := r.store.get("alice", "k") // the app completed in its own transaction, and its connection broke
		must(t, r.store.Complete(context.Background(), keystore.Ownership{Client: "alice", Key: "k", Token: e.Token}, keystore.Answer{Status: 201, Body: []byte("mine")}))
	})
	r.proxy.upstream.transport.DisableKeepAlives = true
	app := r.proxy.upstream.url
	broken := (&rig{t: t}).rawApp(closing)
	app.Host = strings.TrimPrefix(broken, "http://")
	want(t, r.post("k", `{}`), 502, "upstream-failed", false)
	got := r.post("k", `{}`)
	want(t, got, 201, "", true)
	if got.Body != "mine" {
		t.Errorf("body %q", got.Body)
	}
}
