// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// traceContext reads and writes traceparent and tracestate.
var traceContext propagation.TraceContext

// trace begins the span of an enforced request, which continues the caller's trace. Spans hold no key, no client and nothing that either sent but its
// method. Without a tracer nothing happens, and the caller's trace passes through to the app as it is.
func (x *exchange) trace() (end func()) {
	if x.proxy.tracer == nil {
		return func() {}
	}
	ctx, span := x.proxy.tracer.Start(
		traceContext.Extract(x.r.Context(), propagation.HeaderCarrier(x.r.Header)), x.r.Method+" "+x.route.Path,
		trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(
			attribute.String("http.request.method", x.r.Method),
			attribute.String("http.route", x.route.Path),
			attribute.String("idempotency.route", x.route.Name),
		),
	)
	x.r = x.r.WithContext(ctx)
	watched := &statusWriter{ResponseWriter: x.w}
	x.w = watched
	return func() {
		if watched.status != 0 {
			span.SetAttributes(attribute.Int("http.response.status_code", watched.status))
		}
		if watched.status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, "")
		}
		span.End()
	}
}

// step is the span of a part of the request: a call to the key store or to the app.
func (x *exchange) step(ctx context.Context, name string) (context.Context, func(error)) {
	if x.proxy.tracer == nil {
		return ctx, func(error) {}
	}
	ctx, span := x.proxy.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient))
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, "failed") // what an error says may be about somebody
		}
		span.End()
	}
}

// traceOutcome notes how the request was decided.
func (x *exchange) traceOutcome(outcome string) {
	if x.proxy.tracer != nil {
		trace.SpanFromContext(x.r.Context()).SetAttributes(attribute.String("idempotency.outcome", outcome))
	}
}

// continueTrace makes the app's part of the trace a child of ctx's span.
func (x *exchange) continueTrace(ctx context.Context, header http.Header) {
	if x.proxy.tracer != nil {
		header.Del("Tracestate") // goes with the traceparent that is replaced
		traceContext.Inject(ctx, propagation.HeaderCarrier(header))
	}
}

// statusWriter remembers the status of the answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
