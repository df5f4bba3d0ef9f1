// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"strings"
	"testing"

	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// keyedBy is a policy whose key is elsewhere than in a header.
func keyedBy(source, pointer string) func(*setup) {
	return func(s *setup) {
		r := &s.config.Routes[0]
		r.KeySource, r.KeyPointer, r.KeyHeader = source, pointer, ""
		if err := proxyconfig.Validate(s.config); err != nil {
			panic(err)
		}
	}
}

func optional(s *setup) { s.config.Routes[0].KeyRequired = false }

const orderEvent = `{"specversion":"1.0","type":"order","source":"/orders","id":"1 2","data":{"n":1}}`

var structured = []string{"-Content-Type", "", "Content-Type", "application/cloudevents+json; charset=utf-8"}

func TestCloudEvents(t *testing.T) {
	binary := []string{"Ce-Specversion", "1.0", "Ce-Type", "order", "Ce-Source", "/orders", "Ce-Id", "1%202"}
	for _, row := range []struct {
		reason  string
		fields  []string
		body    string
		status  int
		problem string
		detail  string
	}{
		{"binary", binary, `{"n":1}`, 201, "", ""},
		{"binary without data", binary, "", 201, "", ""},
		{"structured", structured, orderEvent, 201, "", ""},
		{"structured, with a copy in the header", append(structured, binary...), orderEvent, 201, "", ""},
		{"structured, by another case of the media type", []string{"-Content-Type", "", "Content-Type", "Application/CloudEvents+JSON"}, orderEvent, 201, "", ""},
		{"structured, with another event in the header", append(structured, "Ce-Source", "/orders", "Ce-Id", "1"), orderEvent, 400, "key-invalid", "two different events"},
		{"structured, with half of an event in the header", append(structured, "Ce-Id", "1%202"), orderEvent, 400, "key-missing", "Ce-Source"},
		{"neither", nil, orderEvent, 400, "key-missing", "Ce-Source"},
		{"a key in the usual header is none", []string{"Idempotency-Key", "k"}, orderEvent, 400, "key-missing", "Ce-Source"},
		{"half of an event", []string{"Ce-Source", "/orders"}, `{}`, 400, "key-missing", "Ce-Id"},
		{"structured without an id", structured, `{"source":"/orders"}`, 400, "key-missing", "/id"},
		{"structured, its id a number", structured, `{"source":"/orders","id":1}`, 400, "key-invalid", "id of the event is not a string"},
		{"structured, its id there twice", structured, `{"source":"/orders","id":"1","id":"2"}`, 400, "key-invalid", "more than once"},
		{"structured, a lone surrogate", structured, `{"source":"/orders","id":"\ud800"}`, 400, "key-invalid", "no text"},
		{"structured, a control character", structured, `{"source":"/orders","id":"\u0001"}`, 400, "key-invalid", "control character"},
		{"structured, empty", structured, "", 400, "key-missing", "empty"},
		{"structured, no JSON", structured, "id=1", 400, "key-invalid", "not JSON"},
		{"structured, compressed", append(structured, "Content-Encoding", "gzip"), zipped(orderEvent), 400, "key-invalid", "Content-Encoding"},
		{"structured in UTF-16", []string{"-Content-Type", "", "Content-Type", "application/cloudevents+json; charset=utf-16"}, orderEvent, 400, "key-invalid", "UTF-8"},
		{"another format", []string{"-Content-Type", "", "Content-Type", "application/cloudevents+xml"}, "<event/>", 400, "key-invalid", "application/cloudevents+json"},
		{"a batch", []string{"-Content-Type", "", "Content-Type", "application/cloudevents-batch+json"}, "[" + orderEvent + "]", 400, "key-invalid", "one by one"},
		{"two media types", append(structured, "Content-Type", "application/json"), orderEvent, 400, "key-invalid", "application/cloudevents+json"},
		{"the connection takes the id away", append(binary, "Connection", "Ce-Id"), `{}`, 400, "connection-invalid", ""},
	} {
		t.Run(row.reason, func(t *testing.T) {
			r := start(t, keyedBy("CloudEvent", ""))
			got := r.post("", row.body, row.fields...)
			want(t, got, row.status, row.problem, false)
			if !strings.Contains(got.Body, row.detail) {
				t.Errorf("%q is not in %s", row.detail, got.Body)
			}
			if row.status != 201 {
				r.executions(0)
				return
			}
			want(t, r.post("", row.body, row.fields...), 201, "", true)
			r.executions(1)
			if r.store.get("alice", "/orders 1%202") == nil {
				t.Error("the entry has another key")
			}
		})
	}
}

// TestOneEventInTwoModes: it is one key, and not the same request.
func TestOneEventInTwoModes(t *testing.T) {
	r := start(t, keyedBy("CloudEvent", ""))
	want(t, r.post("", orderEvent, structured...), 201, "", false)
	want(t, r.post("", `{"n":1}`, "Ce-Source", "/orders", "Ce-Id", "1%202"), 422, "key-reused", false)
	want(t, r.post("", `{"n":1}`, "Ce-Source", "/orders%201", "Ce-Id", "2"), 201, "", false)
	r.executions(2)
}

func TestKeyInTheBody(t *testing.T) {
	form := []string{"-Content-Type", "", "Content-Type", "application/x-www-form-urlencoded"}
	for _, row := range []struct {
		reason  string
		fields  []string
		body    string
		status  int
		problem string
		detail  string
	}{
		{"a string", nil, `{"id":"e1"}`, 201, "", ""},
		{"an integer", nil, `{"id":7}`, 201, "", ""},
		{"under another media type, as some senders of webhooks have it", []string{"-Content-Type", "", "Content-Type", "text/plain"}, `{"id":"e1"}`, 201, "", ""},
		{"missing", nil, `{"ID":"e1"}`, 400, "key-missing", "/id"},
		{"no body", nil, ``, 400, "key-missing", "empty"},
		{"white space", nil, ` `, 400, "key-missing", "empty"},
		{"a form", form, `id=e1`, 400, "key-invalid", "not JSON"},
		{"neither string nor number", nil, `{"id":["e1"]}`, 400, "key-invalid", "neither a string nor a number"},
		{"a fraction", nil, `{"id":7.0}`, 400, "key-invalid", "fraction"},
		{"twice", nil, `{"id":"e1","id":"e2"}`, 400, "key-invalid", "more than once"},
		{"as long as it may be", nil, `{"id":"` + strings.Repeat("e", 255) + `"}`, 201, "", ""},
		{"one longer", nil, `{"id":"` + strings.Repeat("e", 256) + `"}`, 400, "key-invalid", "255"},
		{"not UTF-8", nil, "{\"id\":\"e1\",\"x\":\"\xff\"}", 400, "key-invalid", "UTF-8"},
		{"as large as is looked at", nil, `{"id":"e1","x":"` + strings.Repeat("x", canonicalBytes-18) + `"}`, 201, "", ""},
		{"one byte larger", nil, `{"id":"e1","x":"` + strings.Repeat("x", canonicalBytes-17) + `"}`, 413, "body-too-large", "1048576"},
	} {
		t.Run(row.reason, func(t *testing.T) {
			r := start(t, keyedBy("JSONPointer", "/id"))
			got := r.post("", row.body, row.fields...)
			want(t, got, row.status, row.problem, false)
			if !strings.Contains(got.Body, row.detail) {
				t.Errorf("%q is not in %s", row.detail, got.Body)
			}
			if row.status != 201 {
				r.executions(0)
				return
			}
			want(t, r.post("", row.body, row.fields...), 201, "", true)
			r.executions(1)
		})
	}
}

// TestNumberIsNotItsText: 7 and "7" are two keys.
func TestNumberIsNotItsText(t *testing.T) {
	r := start(t, keyedBy("JSONPointer", "/id"))
	for _, body := range []string{`{"id":7}`, `{"id":"7"}`, `{"id":"=7"}`} {
		want(t, r.post("", body), 201, "", false)
	}
	r.executions(3)
	want(t, r.post("", `{"id":"7","amount":1}`), 422, "key-reused", false)
}

func TestKeyPatternHoldsForEverySource(t *testing.T) {
	r := start(t, keyedBy("JSONPointer", "/id"), func(s *setup) { s.config.Routes[0].KeyPattern = "evt_[0-9]+" })
	want(t, r.post("", `{"id":"evt_1"}`), 201, "", false)
	want(t, r.post("", `{"id":"evt_x"}`), 400, "key-invalid", false)
}

// TestOptionalKeyInTheBody: without one, the request passes whole; with a bad one it does not.
func TestOptionalKeyInTheBody(t *testing.T) {
	bodies := make(chan string, 10)
	r := start(t, keyedBy("JSONPointer", "/id"), optional, func(s *setup) {
		s.app = func(w http.ResponseWriter, req *http.Request) {
			body := make([]byte, 100)
			n, _ := req.Body.Read(body)
			bodies <- string(body[:n])
			w.WriteHeader(http.StatusCreated)
		}
	})
	for range 2 {
		want(t, r.post("", `{"x":1}`), 201, "", false)
		if got := <-bodies; got != `{"x":1}` {
			t.Errorf("the app got %q", got)
		}
	}
	want(t, r.post("", `{"id":null}`), 400, "key-invalid", false)
	r.executions(2)
}

func TestOptionalEvent(t *testing.T) {
	r := start(t, keyedBy("CloudEvent", ""), optional)
	for range 2 {
		want(t, r.post("", `{"id":"1","source":"/a"}`), 201, "", false)
	}
	want(t, r.post("", `{}`, "Ce-Id", "1"), 400, "key-missing", false)
	r.executions(2)
}

// TestFingerprintAsKey: the same request has one effect, whatever header it comes with; another has its own, and is never refused.
func TestFingerprintAsKey(t *testing.T) {
	r := start(t, keyedBy("Fingerprint", ""))
	want(t, r.post("", `{"a":1,"b":2}`), 201, "", false)
	want(t, r.post("", `{"b":2,"a":1}`), 201, "", true)
	want(t, r.post("k", `{"a":1,"b":2}`), 201, "", true)
	want(t, r.post("", `{"a":2,"b":2}`), 201, "", false)
	want(t, r.post("", `{"a":1,"b":2}`, "-X-Client-Id", "", "X-Client-Id", "bob"), 201, "", false)
	want(t, r.post("", ``), 201, "", false)
	want(t, r.post("", ``), 201, "", true)
	r.executions(4)
}

func TestFingerprintAsKeyInFlight(t *testing.T) {
	g := newGate()
	r := start(t, keyedBy("Fingerprint", ""), func(s *setup) { s.app = g.ServeHTTP })
	first := make(chan reply, 1)
	go func() { first <- r.post("", `{}`) }()
	<-g.inside
	want(t, r.post("", `{}`), 409, "in-flight", false)
	close(g.leave)
	<-first
	r.executions(1)
}

// TestKeySourcesInAudit: what would have been refused is counted, and reaches the app whole.
func TestKeySourcesInAudit(t *testing.T) {
	r := start(t, keyedBy("JSONPointer", "/id"), func(s *setup) { s.config.Mode = "Audit" })
	for _, row := range []struct{ body, outcome string }{
		{`{"id":"e1"}`, "executed"}, {`{"id":"e1"}`, "replayed"}, {`{"id":[]}`, "key_invalid"}, {`{}`, "key_missing"},
	} {
		before := r.counted(t, "Audit", row.outcome)
		want(t, r.post("", row.body), 201, "", false)
		if got := r.counted(t, "Audit", row.outcome); got != before+1 {
			t.Errorf("%s: %s counted %v times more", row.body, row.outcome, got-before)
		}
	}
	r.executions(4)
}

// TestReconcileAsksByTheKeyThatTheAppKnows: also where the request has it elsewhere than in a header.
func TestReconcileAsksByTheKeyThatTheAppKnows(t *testing.T) {
	for _, row := range []struct {
		source, pointer, body, key string
		fields                     []string
		want                       map[string]string
	}{
		{"JSONPointer", "/id", `{"id":"e1"}`, "e1", nil, map[string]string{"Idempotency-Key": "e1"}},
		{"CloudEvent", "", orderEvent, "/orders 1%202", structured, map[string]string{"Ce-Source": "/orders", "Ce-Id": "1%202", "Idempotency-Key": ""}},
	} {
		asked := make(chan http.Header, 1)
		r := start(t, keyedBy(row.source, row.pointer), func(s *setup) {
			s.config.Routes[0].OnUnknownOutcome, s.config.Routes[0].ReconcilePath = "Reconcile", "/reconcile"
			s.app = func(_ http.ResponseWriter, req *http.Request) {
				if req.URL.Path != "/reconcile" {
					panic(http.ErrAbortHandler)
				}
				asked <- req.Header
			}
		})
		want(t, r.post("", row.body, row.fields...), 502, "upstream-failed", false)
		r.post("", row.body, row.fields...)
		if r.store.get("alice", row.key) == nil {
			t.Errorf("no entry %q", row.key)
		}
		header := <-asked
		for name, value := range row.want {
			if header.Get(name) != value {
				t.Errorf("%s: the app was asked with %s %q, want %q", row.source, name, header.Get(name), value)
			}
		}
		if header.Get(headerSeed) == "" {
			t.Errorf("%s: the app was asked without the entry's seed", row.source)
		}
	}
}

func TestKeySourcesArePublished(t *testing.T) {
	for source, text := range map[string]string{"CloudEvent": "ce-source", "JSONPointer": "/event/id", "Fingerprint": "none is sent"} {
		pointer := ""
		if source == "JSONPointer" {
			pointer = "/event/id"
		}
		r := start(t, keyedBy(source, pointer))
		for _, accept := range []string{"application/json", "text/html"} {
			got, err := r.try("GET", wellKnownPath, "", "", "Accept", accept)
			must(t, err)
			if got.Status != 200 || !strings.Contains(got.Body, text) {
				t.Errorf("%s as %s: %d without %q:\n%s", source, accept, got.Status, text, got.Body)
			}
		}
	}
}
