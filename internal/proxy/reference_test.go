// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// shelf is a rig whose policy records by reference. POST makes a payment; what GET of it answers is as the test says.
type shelf struct {
	*rig
	get   atomic.Pointer[http.HandlerFunc]
	asked chan *http.Request
}

func startShelf(t *testing.T, location string, change ...func(*setup)) *shelf {
	s := &shelf{asked: make(chan *http.Request, 100)}
	s.rig = start(t, append([]func(*setup){func(set *setup) {
		set.config.Routes[0].ResponseStore = "Reference"
		set.app = func(w http.ResponseWriter, req *http.Request) {
			if req.Method == http.MethodGet {
				s.n.Add(-1) // asking is not executing
				s.asked <- req
				(*s.get.Load())(w, req)
				return
			}
			if location != "" {
				w.Header().Set("Location", location)
			}
			w.Header().Set("ETag", `"v1"`)
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Link", "</help>; rel=help")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"state":"new"}`)
		}
	}}, change...)...)
	return s.gives(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("ETag", `"v2"`)
		w.Header().Set("Content-Type", "application/vnd.payment+json")
		w.Header().Set("Set-Cookie", "a=b")
		_, _ = io.WriteString(w, `{"state":"paid"}`)
	})
}

func (s *shelf) gives(get http.HandlerFunc) *shelf {
	s.get.Store(&get)
	return s
}

func gives(status int, fields ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(fields); i += 2 {
			w.Header().Set(fields[i], fields[i+1])
		}
		w.WriteHeader(status)
	}
}

// TestReference: the first caller gets the app's own answer, and a retry its status and place, with what is there by now.
func TestReference(t *testing.T) {
	s := startShelf(t, "/payments/7?x=%2F#top")
	first := s.post("k", `{}`, "Authorization", "Bearer one")
	want(t, first, 201, "", false)
	if first.Body != `{"state":"new"}` || first.Header.Get("Etag") != `"v1"` {
		t.Errorf("the first caller got %q %v", first.Body, first.Header)
	}
	e := s.store.get("alice", "k")
	if diff := cmp.Diff(keystore.Answer{
		Tombstone: keystore.Referenced, Status: 201, Header: http.Header{"Location": {"/payments/7?x=%2F#top"}, "Link": {"</help>; rel=help"}},
	}, *e.answer); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
	again := s.post("k", `{}`, "Authorization", "Bearer two", "Cookie", "s=1", "Accept", "application/json", "If-None-Match", `"v2"`, "Range", "bytes=0-1", "X-Original-Url", "/admin")
	want(t, again, 201, "", true)
	again.Header.Del("Date")
	if diff := cmp.Diff(http.Header{
		"Location": {"/payments/7?x=%2F#top"}, "Link": {"</help>; rel=help"}, "Etag": {`"v2"`}, "Content-Type": {"application/vnd.payment+json"},
		"Content-Length": {"16"}, headerReplayed: {"true"},
	}, again.Header); diff != "" || again.Body != `{"state":"paid"}` {
		t.Errorf("body %q, header (-want +got):\n%s", again.Body, diff)
	}
	req := <-s.asked
	if req.RequestURI != "/payments/7?x=%2F" || req.Header.Get("Authorization") != "Bearer two" || req.Header.Get("Cookie") != "s=1" ||
		req.Header.Get("X-Client-Id") != "alice" || req.Header.Get("Accept") != "application/json" {
		t.Errorf("asked for %s with %v", req.RequestURI, req.Header)
	}
	for _, name := range []string{"If-None-Match", "Range", "X-Original-Url", "Idempotency-Key", "Content-Type", "Content-Length"} {
		if req.Header.Get(name) != "" {
			t.Errorf("asked with %s", name)
		}
	}
	s.executions(1)
}

// TestWhereAReferenceMayLead: a place on the app is one, and every other answer is recorded whole, if it fits.
func TestWhereAReferenceMayLead(t *testing.T) {
	for _, row := range []struct {
		location, path string
		reason         string
	}{
		{"/payments/7", "/payments/7", "a path"},
		{"7", "/7", "relative to the request's path"},
		{"payments/../x/7", "/x/7", "dots are resolved"},
		{"?id=7", "/payments?id=7", "a query"},
		{"http://shop.example/payments/7", "/payments/7", "an absolute place by the request's host"},
		{"https://SHOP.example:443/payments/7", "/payments/7", "TLS ended in front of the sidecar"},
		{"//shop.example/payments/7", "/payments/7", "without a scheme"},
		{"/a%2Fb", "/a%2Fb", "an encoded slash stays one"},
		{"https://elsewhere.example/7", "", "another app"},
		{"//elsewhere.example/7", "", "another app, without a scheme"},
		{"http://shop.example:8080/7", "", "another port"},
		{"http://user@shop.example/7", "", "a user"},
		{"ftp://shop.example/7", "", "another protocol"},
		{"urn:payment:7", "", "a name"},
		{"http:/7", "", "a scheme without a host"},
		{"http://shop.example\\@elsewhere.example/7", "", "no URL"},
		{"%zz", "", "no URL either"},
		{"", "", "none at all"},
	} {
		s := startShelf(t, row.location)
		post := func() reply {
			req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, s.url+"/payments", strings.NewReader(`{}`))
			must(t, err)
			req.Host = "shop.example"
			req.Header.Set("X-Client-Id", "alice")
			req.Header["Idempotency-key"] = []string{"k"}
			got, err := do(s.client, req)
			must(t, err)
			return got
		}
		want(t, post(), 201, "", false)
		got := post()
		want(t, got, 201, "", true)
		if row.path == "" {
			if got.Body != `{"state":"new"}` || len(s.asked) != 0 {
				t.Errorf("%q: %s: replayed %q, asked %d times", row.location, row.reason, got.Body, len(s.asked))
			}
			continue
		}
		if got.Body != `{"state":"paid"}` {
			t.Errorf("%q: %s: replayed %q", row.location, row.reason, got.Body)
		}
		if req := <-s.asked; req.RequestURI != row.path || req.Host != "shop.example" {
			t.Errorf("%q: %s: asked %s for %s", row.location, row.reason, req.Host, req.RequestURI)
		}
	}
}

// TestReferenceByAnotherHost: a place that was the app's own when it was recorded is still, whatever name the retry comes by.
func TestReferenceByAnotherHost(t *testing.T) {
	s := startShelf(t, "", func(set *setup) {
		inner := set.app
		set.app = func(w http.ResponseWriter, req *http.Request) {
			if req.Method == http.MethodPost {
				w.Header().Set("Location", "http://"+req.Host+"/payments/7")
			}
			inner(w, req)
		}
	})
	want(t, s.post("k", `{}`), 201, "", false)
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, s.url+"/payments", strings.NewReader(`{}`))
	must(t, err)
	req.Host = "other.example"
	req.Header.Set("X-Client-Id", "alice")
	req.Header.Set("Content-Type", "application/json")
	req.Header["Idempotency-key"] = []string{"k"}
	got, err := do(s.client, req)
	must(t, err)
	want(t, got, 201, "", true)
	if asked := <-s.asked; asked.RequestURI != "/payments/7" {
		t.Errorf("asked for %s", asked.RequestURI)
	}
}

// TestWhatARetryGetsByReference is the table of docs/spec/proxy.md. Nothing is executed again, and the next retry asks again.
func TestWhatARetryGetsByReference(t *testing.T) {
	hang := func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }
	abort := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	for _, row := range []struct {
		name    string
		get     http.HandlerFunc
		status  int
		problem string
		detail  string
	}{
		{"200", gives(200), 201, "", ""},
		{"203", gives(203), 201, "", ""},
		{"204", gives(204), 201, "", ""},
		{"404", gives(404), 409, "answer-gone", `"originalStatus":201`},
		{"410", gives(410), 409, "answer-gone", `"originalStatus":201`},
		{"301", gives(301, "Location", "/payments/8"), 409, "answer-moved", `"originalStatus":201`},
		{"302, to a place where one logs in", gives(302, "Location", "/login"), 409, "answer-moved", ""},
		{"307", gives(307, "Location", "/payments/8"), 409, "answer-moved", ""},
		{"308 to itself", gives(308, "Location", "/payments/7"), 409, "answer-moved", ""},
		{"304, though nobody asked so", gives(304), 409, "answer-moved", ""},
		{"401", gives(401, "WWW-Authenticate", "Bearer realm=x"), 401, "replay-unauthorized", ""},
		{"403", gives(403), 403, "replay-forbidden", ""},
		{"400", gives(400), 503, "answer-unavailable", `"retryable":true`},
		{"405", gives(405), 503, "answer-unavailable", ""},
		{"429", gives(429), 503, "answer-unavailable", ""},
		{"500", gives(500), 503, "answer-unavailable", ""},
		{"503", gives(503), 503, "answer-unavailable", ""},
		{"202: it is still at work", gives(202), 503, "answer-unavailable", ""},
		{"206, though nobody asked so", gives(206), 503, "answer-unavailable", ""},
		{"no answer within the route's time", hang, 503, "answer-unavailable", ""},
		{"no answer", abort, 503, "answer-unavailable", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := startShelf(t, "/payments/7", func(set *setup) {
				if strings.Contains(row.name, "the route's time") {
					set.config.Routes[0].TimeoutMillis = 100
				}
			})
			want(t, s.post("k", `{}`), 201, "", false)
			s.gives(row.get)
			got := s.post("k", `{}`)
			want(t, got, row.status, row.problem, row.problem == "")
			if !strings.Contains(got.Body, row.detail) || row.problem != "" && got.Header.Get("Location") != "" {
				t.Errorf("got %s %v", got.Body, got.Header)
			}
			if row.status == 401 && got.Header.Get("WWW-Authenticate") != "Bearer realm=x" {
				t.Errorf("challenged with %q", got.Header.Get("WWW-Authenticate"))
			}
			if row.status == 503 && got.Header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
			s.gives(gives(200))
			want(t, s.post("k", `{}`), 201, "", true)
			s.executions(1)
		})
	}
}

// TestReferenceCutOff: half a body must not look whole.
func TestReferenceCutOff(t *testing.T) {
	s := startShelf(t, "/payments/7")
	want(t, s.post("k", `{}`), 201, "", false)
	s.gives(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	if got, err := s.try("POST", "/payments", "k", `{}`); err == nil && got.Err == nil {
		t.Errorf("got %d %q as if it were whole", got.Status, got.Body)
	}
	s.executions(1)
}

// TestReferenceHasNoLargestSize: what is too large to be recorded is given in full, to the first caller and to every other.
func TestReferenceHasNoLargestSize(t *testing.T) {
	large := strings.Repeat("x", 100_000)
	s := startShelf(t, "/payments/7", func(set *setup) {
		set.config.Routes[0].ResponseMaxBytes = 10
		set.app = func(w http.ResponseWriter, req *http.Request) {
			if req.Method == http.MethodPost {
				w.Header().Set("Location", "/payments/7")
				w.WriteHeader(http.StatusCreated)
			}
			_, _ = io.WriteString(w, large)
		}
	})
	for n := range 2 {
		got := s.post("k", `{}`)
		want(t, got, 201, "", n == 1)
		if got.Body != large {
			t.Errorf("call %d got %d bytes", n, len(got.Body))
		}
	}
	// Without a place where it could be had again it is as with Full.
	s = startShelf(t, "", func(set *setup) { set.config.Routes[0].ResponseMaxBytes = 10 })
	want(t, s.post("k", `{}`), 201, "", false)
	want(t, s.post("k", `{}`), 409, "answer-not-kept", false)
}

// TestWhatIsNoReference: answers that are as good recorded whole.
func TestWhatIsNoReference(t *testing.T) {
	for _, row := range []struct {
		reason string
		status int
		body   string
	}{{"no body to leave behind", 201, ""}, {"none by its status", 204, ""}, {"a redirect is for the client to follow", 303, "see there"}, {"a refusal", 409, "no"}} {
		s := startShelf(t, "", func(set *setup) {
			set.app = func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("Location", "/payments/7")
				w.WriteHeader(row.status)
				_, _ = io.WriteString(w, row.body)
			}
		})
		s.post("k", `{}`)
		got := s.post("k", `{}`)
		if got.Status != row.status || !got.replayed() || got.Body != row.body || got.Header.Get("Location") != "/payments/7" {
			t.Errorf("%s: got %d %q replayed %v", row.reason, got.Status, got.Body, got.replayed())
		}
		s.executions(1)
	}
}

// TestReferenceAfterReplayAuthorization: who may not have the answer does not make the app be asked for it.
func TestReferenceAfterReplayAuthorization(t *testing.T) {
	s := startShelf(t, "/payments/7", func(set *setup) { set.config.Routes[0].ReplayAuthorization = "/may" })
	want(t, s.post("k", `{}`), 201, "", false)
	s.gives(gives(403))
	want(t, s.post("k", `{}`), 403, "replay-forbidden", false)
	if req := <-s.asked; req.URL.Path != "/may" || len(s.asked) != 0 {
		t.Errorf("asked for %s, and %d times more", req.URL.Path, len(s.asked))
	}
}

// TestReferenceInAudit: what is recorded there is replayed after a switch to Enforce.
func TestReferenceInAudit(t *testing.T) {
	s := startShelf(t, "/payments/7", auditing)
	s.post("k", `{}`)
	if e := s.store.get("alice", "k"); e.answer == nil || e.answer.Tombstone != keystore.Referenced || e.answer.Header.Get("Location") != "/payments/7" {
		t.Errorf("recorded %+v", e.answer)
	}
	s.post("k", `{}`)
	if n := s.counted(t, "Audit", "replayed"); n != 1 {
		t.Errorf("%v counted as replayed", n)
	}
	config := sampleConfig()
	config.Routes[0].ResponseStore = "Reference"
	s.proxy.Load(config, nil, "")
	want(t, s.post("k", `{}`), 201, "", true)
	s.executions(2)
}
