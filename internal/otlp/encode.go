// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// The JSON of ExportTraceServiceRequest, as far as the sidecar's spans need it: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding.
type (
	export struct {
		ResourceSpans []resourceSpans `json:"resourceSpans"`
	}
	resourceSpans struct {
		Resource   resource     `json:"resource"`
		ScopeSpans []scopeSpans `json:"scopeSpans"`
	}
	resource struct {
		Attributes []keyValue `json:"attributes,omitempty"`
	}
	scopeSpans struct {
		Scope scope  `json:"scope"`
		Spans []span `json:"spans"`
	}
	scope struct {
		Name    string `json:"name"`
		Version string `json:"version,omitempty"`
	}
	span struct {
		TraceID      string     `json:"traceId"`
		SpanID       string     `json:"spanId"`
		TraceState   string     `json:"traceState,omitempty"`
		ParentSpanID string     `json:"parentSpanId,omitempty"`
		Flags        byte       `json:"flags"`
		Name         string     `json:"name"`
		Kind         int        `json:"kind"`
		Start        string     `json:"startTimeUnixNano"`
		End          string     `json:"endTimeUnixNano"`
		Attributes   []keyValue `json:"attributes,omitempty"`
		Status       status     `json:"status"`
	}
	status struct {
		Code    int    `json:"code,omitempty"`
		Message string `json:"message,omitempty"`
	}
	keyValue struct {
		Key   string `json:"key"`
		Value value  `json:"value"`
	}
	// value has one field.
	value struct {
		String *string  `json:"stringValue,omitempty"`
		Bool   *bool    `json:"boolValue,omitempty"`
		Int    *string  `json:"intValue,omitempty"`
		Double *float64 `json:"doubleValue,omitempty"`
	}
)

// encode puts the spans, all of one tracer, into one message.
func encode(spans []sdk.ReadOnlySpan) export {
	first := spans[0]
	out := make([]span, len(spans))
	for i, s := range spans {
		out[i] = encodeSpan(s)
	}
	return export{[]resourceSpans{{
		Resource:   resource{attributes(first.Resource().Attributes())},
		ScopeSpans: []scopeSpans{{scope{first.InstrumentationScope().Name, first.InstrumentationScope().Version}, out}},
	}}}
}

func encodeSpan(s sdk.ReadOnlySpan) span {
	context, parent := s.SpanContext(), s.Parent()
	out := span{
		TraceID:    context.TraceID().String(),
		SpanID:     context.SpanID().String(),
		TraceState: context.TraceState().String(),
		Flags:      byte(context.TraceFlags()),
		Name:       s.Name(),
		Kind:       int(s.SpanKind()), // the numbers are the same
		Start:      strconv.FormatInt(s.StartTime().UnixNano(), 10),
		End:        strconv.FormatInt(s.EndTime().UnixNano(), 10),
		Attributes: attributes(s.Attributes()),
		Status:     status{Message: s.Status().Description},
	}
	if parent.HasSpanID() {
		out.ParentSpanID = parent.SpanID().String()
	}
	switch s.Status().Code {
	case codes.Ok:
		out.Status.Code = 1
	case codes.Error:
		out.Status.Code = 2
	case codes.Unset:
	}
	return out
}

func attributes(list []attribute.KeyValue) []keyValue {
	out := make([]keyValue, len(list))
	for i, a := range list {
		out[i] = keyValue{Key: string(a.Key), Value: encodeValue(a.Value)}
	}
	return out
}

// encodeValue writes lists as text: the sidecar has none.
func encodeValue(v attribute.Value) value {
	switch v.Type() {
	case attribute.BOOL:
		b := v.AsBool()
		return value{Bool: &b}
	case attribute.INT64:
		n := strconv.FormatInt(v.AsInt64(), 10)
		return value{Int: &n}
	case attribute.FLOAT64:
		f := v.AsFloat64()
		return value{Double: &f}
	default:
		s := v.String()
		return value{String: &s}
	}
}
