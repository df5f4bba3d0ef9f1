// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
)

// spanned is a span as a collector gets it.
type spanned struct {
	TraceID, SpanID, ParentSpanID, Name string
	Kind                                int
	Attributes                          []struct {
		Key   string
		Value struct{ StringValue, IntValue string }
	}
}

func (s spanned) attribute(key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.StringValue + a.Value.IntValue
		}
	}
	return ""
}

// collector returns the address of one, and what it was sent.
func collector(t *testing.T) (url string, spans chan []spanned, bodies chan string) {
	t.Helper()
	spans, bodies = make(chan []spanned, 100), make(chan string, 100)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", r.URL, err)
		}
		var got struct {
			ResourceSpans []struct{ ScopeSpans []struct{ Spans []spanned } }
		}
		if err := json.Unmarshal(body, &got); err != nil {
			t.Error(err)
		}
		spans <- got.ResourceSpans[0].ScopeSpans[0].Spans
		bodies <- string(body)
	}))
	t.Cleanup(server.Close)
	return server.URL, spans, bodies
}

const (
	callersTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	callersSpan  = "00f067aa0ba902b7"
)

// TestTraces: an enforced request continues the caller's trace and the app's call is part of it; a replay says so; spans hold neither keys nor clients.
func TestTraces(t *testing.T) {
	endpoint, spans, bodies := collector(t)
	arrived := make(chan http.Header, 10)
	w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		arrived <- r.Header.Clone()
		rw.WriteHeader(http.StatusCreated)
	})
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=p1")
	p := w.proxy("a")
	post := func() reply {
		return p.post("secret-key", `{"card": "secret-card"}`, "Traceparent", "00-"+callersTrace+"-"+callersSpan+"-01", "Tracestate", "vendor=1")
	}
	if got := post(); got.status != http.StatusCreated {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	if got := post(); !got.replayed() {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	must(t, p.cmd.Process.Signal(os.Interrupt)) // the rest is sent at the end
	var all []spanned
	for len(all) < 5 {
		all = append(all, <-spans...)
	}
	byName := map[string][]spanned{}
	for _, s := range all {
		byName[s.Name] = append(byName[s.Name], s)
		if s.TraceID != callersTrace {
			t.Errorf("%s is of trace %s", s.Name, s.TraceID)
		}
	}
	requests := byName["POST /payments"]
	if len(requests) != 2 || len(byName["reserve"]) != 2 || len(byName["upstream"]) != 1 || len(byName["complete"]) != 1 || len(all) != 6 && len(all) != 5 {
		t.Fatalf("spans %v", all)
	}
	var outcomes []string
	for _, s := range requests {
		outcomes = append(outcomes, s.attribute("idempotency.outcome")+" "+s.attribute("http.response.status_code"))
		if s.ParentSpanID != callersSpan || s.Kind != 2 {
			t.Errorf("request: %+v", s)
		}
	}
	if slices.Sort(outcomes); !slices.Equal(outcomes, []string{"executed 201", "replayed 201"}) {
		t.Errorf("outcomes %q", outcomes)
	}
	header := <-arrived
	if want := "00-" + callersTrace + "-" + byName["upstream"][0].SpanID + "-01"; header.Get("Traceparent") != want || header.Get("Tracestate") != "vendor=1" {
		t.Errorf("the app got %q %q, want %q", header.Get("Traceparent"), header.Get("Tracestate"), want)
	}
	for len(bodies) > 0 {
		if body := <-bodies; strings.Contains(body, "secret") || strings.Contains(body, "alice") || !strings.Contains(body, `"p1"`) {
			t.Errorf("sent %s", body)
		}
	}
}

// TestTraceContextPasses: without a collector the caller's trace passes through as it is, on enforced routes and others.
func TestTraceContextPasses(t *testing.T) {
	arrived := make(chan http.Header, 10)
	w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		arrived <- r.Header.Clone()
		rw.WriteHeader(http.StatusCreated)
	})
	fields := []string{"Traceparent", "00-" + callersTrace + "-" + callersSpan + "-00", "Tracestate", "a=1,b=2", "Baggage", "userId=alice"}
	w.proxy("a").post("k", `{}`, fields...)
	header := <-arrived
	for i := 0; i < len(fields); i += 2 {
		if header.Get(fields[i]) != fields[i+1] {
			t.Errorf("%s arrived as %q", fields[i], header.Get(fields[i]))
		}
	}
	w.proxy("b").post("l", `{}`)
	if header := <-arrived; header.Get("Traceparent") != "" {
		t.Errorf("a trace was made up: %q", header.Get("Traceparent"))
	}
}

// TestTracingSettings: what cannot be had is said, without secrets, and is no reason not to serve.
func TestTracingSettings(t *testing.T) {
	for _, row := range []struct{ name, value, says string }{
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317", "want http or https"},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/json"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "api-key", "entry 1"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "a=b,secret=%zz", "entry 2"},
		{"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "10s", "milliseconds"},
		{"OTEL_SDK_DISABLED", "true", ""},
		{"OTEL_TRACES_EXPORTER", "none", ""},
	} {
		env := func(name string) string {
			switch name {
			case row.name:
				return row.value
			case "OTEL_EXPORTER_OTLP_ENDPOINT":
				return "http://collector:4318"
			}
			return ""
		}
		var log bytes.Buffer
		tracer, flush := tracing(context.Background(), env, slog.New(slog.NewTextHandler(&log, nil)))
		flush()
		if tracer != nil || !strings.Contains(log.String(), row.says) || (row.says == "") != (log.Len() == 0) || strings.Contains(log.String(), "secret") {
			t.Errorf("%s=%s: tracer %v, log %q", row.name, row.value, tracer, log.String())
		}
	}
	exporter, err := newExporter(func(name string) string {
		return map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://c/x", "OTEL_EXPORTER_OTLP_HEADERS": "a=b%20c, d=e"}[name]
	})
	if err != nil || exporter.URL != "https://c/x" || exporter.Header.Get("A") != "b c" || exporter.Header.Get("D") != "e" {
		t.Errorf("%+v, %v", exporter, err)
	}
}
