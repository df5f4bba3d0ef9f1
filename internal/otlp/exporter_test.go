// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	sdkresource "go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

func sample() []sdk.ReadOnlySpan {
	start := time.Unix(1, 5)
	id := trace.SpanContextConfig{TraceID: trace.TraceID{1, 15: 2}, SpanID: trace.SpanID{3, 7: 4}, TraceFlags: trace.FlagsSampled}
	parent := id
	parent.SpanID = trace.SpanID{7: 9}
	return tracetest.SpanStubs{{
		Name: "POST /payments", SpanContext: trace.NewSpanContext(id), Parent: trace.NewSpanContext(parent), SpanKind: trace.SpanKindServer,
		StartTime: start, EndTime: start.Add(time.Second),
		Attributes:           []attribute.KeyValue{attribute.String("http.route", "/payments"), attribute.Int("http.response.status_code", 503), attribute.Bool("b", true), attribute.Float64("f", 1.5)},
		Status:               sdk.Status{Code: codes.Error, Description: "failed"},
		Resource:             sdkresource.NewSchemaless(attribute.String("service.name", "s")),
		InstrumentationScope: instrumentation.Scope{Name: "scope", Version: "1"},
	}}.Snapshots()
}

// collector answers with each status in turn, and then with the last.
func collector(t *testing.T, seen chan<- string, statuses ...int) *Exporter {
	t.Helper()
	var n atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("Content-Type") != "application/json" || r.Header.Get("Api-Key") != "secret" || r.Method != http.MethodPost {
			t.Errorf("%s with %v", r.Method, r.Header)
		}
		seen <- string(body)
		w.WriteHeader(statuses[min(int(n.Add(1)), len(statuses))-1])
	}))
	t.Cleanup(server.Close)
	return &Exporter{URL: server.URL + "/v1/traces", Header: http.Header{"Api-Key": {"secret"}}, Timeout: 10 * time.Second}
}

// TestExport: what is sent is the JSON that the protocol describes.
func TestExport(t *testing.T) {
	seen := make(chan string, 10)
	if err := collector(t, seen, 200).ExportSpans(t.Context(), sample()); err != nil {
		t.Fatal(err)
	}
	const want = `{"resourceSpans": [{
		"resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "s"}}]},
		"scopeSpans": [{"scope": {"name": "scope", "version": "1"}, "spans": [{
			"traceId": "01000000000000000000000000000002", "spanId": "0300000000000004", "parentSpanId": "0000000000000009", "flags": 1,
			"name": "POST /payments", "kind": 2, "startTimeUnixNano": "1000000005", "endTimeUnixNano": "2000000005",
			"attributes": [{"key": "http.route", "value": {"stringValue": "/payments"}}, {"key": "http.response.status_code", "value": {"intValue": "503"}},
				{"key": "b", "value": {"boolValue": true}}, {"key": "f", "value": {"doubleValue": 1.5}}],
			"status": {"code": 2, "message": "failed"}}]}]}]}`
	if diff := cmp.Diff(parse(t, want), parse(t, <-seen)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func parse(t *testing.T, text string) (out any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestExportAgain: a collector that is busy is asked again, one that refuses is not, and no error tells what is secret.
func TestExportAgain(t *testing.T) {
	for _, row := range []struct {
		statuses []int
		tries    int
		fails    bool
	}{{[]int{503, 200}, 2, false}, {[]int{429, 200}, 2, false}, {[]int{400}, 1, true}, {[]int{401}, 1, true}, {[]int{302}, 1, true}} {
		seen := make(chan string, 10)
		err := collector(t, seen, row.statuses...).ExportSpans(t.Context(), sample())
		if (err != nil) != row.fails || len(seen) != row.tries || err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%v: %d tries, %v", row.statuses, len(seen), err)
		}
	}
}

// TestExportEnds with the batch's time, whatever the collector does, and says nothing of its address.
func TestExportEnds(t *testing.T) {
	seen := make(chan string, 10)
	e := collector(t, seen, 503)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-seen
		cancel()
	}()
	if err := e.ExportSpans(ctx, sample()); err == nil {
		t.Error("it succeeded")
	}
	gone := &Exporter{URL: "http://user:secret@127.0.0.1:1/v1/traces", Timeout: time.Second}
	if err := gone.ExportSpans(ctx, sample()); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
}
