// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// traceFields are those of https://www.w3.org/TR/trace-context/ and https://www.w3.org/TR/baggage/, and what came before them.
var traceFields = []string{"Traceparent", "Tracestate", "Tracestate", "Baggage", "B3", "X-Request-Id", "X-B3-Traceid"}

// sent are values for traceFields: more than one line of one field, and what no specification allows, for the app to judge.
var sent = []string{
	"Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "Tracestate", "congo=t61rcWkgMzE", "Tracestate", "rojo=00f067aa0ba902b7",
	"Baggage", "userId=alice;p=1, serverNode=DF%2028", "B3", "0", "X-Request-Id", "", "X-B3-Traceid", "not hexadecimal",
}

// TestTraceContextPasses: what a client says of its trace reaches the app as it is, on every way to it; where the client says nothing, neither does the
// sidecar; and a replay, which no app has seen, says nothing either.
func TestTraceContextPasses(t *testing.T) {
	for _, row := range []struct {
		name, path, key string
		change          func(*setup)
	}{
		{"enforced", "/payments", "k", nil},
		{"passed", "/elsewhere", "k", nil},
		{"without a key", "/payments", "", func(s *setup) { s.config.Routes[0].KeyRequired = false }},
		{"audited", "/payments", "k", auditing},
	} {
		for _, fields := range [][]string{sent, nil} {
			t.Run(row.name, func(t *testing.T) {
				seen := make(chan http.Header, 1)
				r := start(t, func(s *setup) {
					s.app = func(w http.ResponseWriter, req *http.Request) {
						seen <- req.Header
						w.Header().Set("Traceresponse", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
						w.WriteHeader(http.StatusCreated)
					}
					if row.change != nil {
						row.change(s)
					}
				})
				got, err := r.try(http.MethodPost, row.path, row.key, `{}`, fields...)
				must(t, err)
				if got.Header.Get("Traceresponse") == "" {
					t.Error("the app's Traceresponse was lost")
				}
				want := http.Header{}
				for i := 0; i < len(fields); i += 2 {
					want.Add(fields[i], fields[i+1])
				}
				if diff := cmp.Diff(want, tracing(<-seen)); diff != "" {
					t.Errorf("the app got (-want +got):\n%s", diff)
				}
				if row.name != "enforced" {
					return
				}
				replay := r.post(row.key, `{}`, fields...)
				if !replay.replayed() || len(tracing(replay.Header)) > 0 || replay.Header.Get("Traceresponse") != "" {
					t.Errorf("replayed %v with %v", replay.replayed(), replay.Header)
				}
			})
		}
	}
}

// tracing is what header says of a trace.
func tracing(header http.Header) http.Header {
	found := http.Header{}
	for name, values := range header {
		if slices.Contains(traceFields, name) {
			found[name] = values
		}
	}
	return found
}
