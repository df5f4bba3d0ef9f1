// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/idempotency-dev/operator/internal/otlp"
)

const (
	exportTimeout = 10 * time.Second
	flushTimeout  = 5 * time.Second
)

// tracing is the tracer that OpenTelemetry's own environment variables ask for; nil when they ask for none, or for what cannot be had, which the log
// says: traffic does not depend on it. flush sends what is left.
func tracing(ctx context.Context, env func(string) string, log *slog.Logger) (tracer trace.Tracer, flush func()) {
	exporter, err := newExporter(env)
	if err != nil {
		log.Error("traces are not sent", "error", err)
	}
	if exporter == nil {
		return nil, func() {}
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "idempotency-proxy"), attribute.String("service.version", version)),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		log.Error("OTEL_RESOURCE_ATTRIBUTES is not understood", "error", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("traces are lost", "error", err) }))
	provider := sdk.NewTracerProvider(sdk.WithBatcher(exporter), sdk.WithResource(about)) // the sampler, too, is the environment's
	return provider.Tracer("github.com/idempotency-dev/operator", trace.WithInstrumentationVersion(version)), func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			log.Warn("traces are lost", "error", err)
		}
	}
}

// newExporter reads https://opentelemetry.io/docs/specs/otel/protocol/exporter/. It returns nil when no endpoint is named.
func newExporter(env func(string) string) (*otlp.Exporter, error) {
	setting := func(name string) string {
		return cmp.Or(env("OTEL_EXPORTER_OTLP_TRACES_"+name), env("OTEL_EXPORTER_OTLP_"+name))
	}
	endpoint := env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
	if base := env("OTEL_EXPORTER_OTLP_ENDPOINT"); endpoint == "" && base != "" {
		endpoint = strings.TrimSuffix(base, "/") + "/v1/traces"
	}
	if endpoint == "" || strings.EqualFold(env("OTEL_SDK_DISABLED"), "true") || env("OTEL_TRACES_EXPORTER") == "none" {
		return nil, nil
	}
	if u, err := url.Parse(endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("check OTEL_EXPORTER_OTLP_ENDPOINT: want http or https, host and port, such as http://collector:4318")
	}
	if protocol := setting("PROTOCOL"); protocol != "" && protocol != "http/json" {
		return nil, fmt.Errorf("check OTEL_EXPORTER_OTLP_PROTOCOL: %q is not spoken here: want http/json, which collectors take on port 4318", protocol)
	}
	header, err := parseHeaders(setting("HEADERS"))
	if err != nil {
		return nil, err
	}
	timeout := exportTimeout
	if text := setting("TIMEOUT"); text != "" {
		millis, err := strconv.Atoi(text)
		if err != nil || millis <= 0 {
			return nil, fmt.Errorf("check OTEL_EXPORTER_OTLP_TIMEOUT: %q is not a number of milliseconds", text)
		}
		timeout = time.Duration(millis) * time.Millisecond
	}
	return &otlp.Exporter{URL: endpoint, Header: header, Timeout: timeout}, nil
}

// parseHeaders reads name=value,name=value, with values percent-encoded. Its error shows none of it.
func parseHeaders(text string) (http.Header, error) {
	header := http.Header{}
	for i, pair := range strings.Split(text, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, found := strings.Cut(pair, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if name = strings.TrimSpace(name); !found || name == "" || err != nil {
			return nil, fmt.Errorf("check OTEL_EXPORTER_OTLP_HEADERS: entry %d is not name=value with the value percent-encoded", i+1)
		}
		header.Set(name, value)
	}
	return header, nil
}
