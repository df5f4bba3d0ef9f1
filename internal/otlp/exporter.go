// SPDX-License-Identifier: Apache-2.0

// Package otlp sends spans to a collector: OTLP over HTTP, in JSON (https://opentelemetry.io/docs/specs/otlp/#otlphttp). The official exporter brings gRPC and
// protocol buffers with it, which are more than half of the sidecar: docs/adr/0015-spans-are-sent-in-json.md.
package otlp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

const (
	// tries of one batch, the second after about firstPause, the others after twice the pause before.
	tries      = 4
	firstPause = time.Second
	longest    = 30 * time.Second
)

// Exporter sends batches of spans. It implements sdk.SpanExporter.
type Exporter struct {
	// URL takes the spans, such as http://collector:4318/v1/traces.
	URL string
	// Header of each request, for credentials.
	Header http.Header
	// Timeout of one try.
	Timeout time.Duration
}

var _ sdk.SpanExporter = (*Exporter)(nil)

// client follows no redirects: credentials are for the address that was given.
var client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// ExportSpans sends the spans, again where the collector says that it may be of use. Its errors hold nothing of the header.
func (e *Exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	if len(spans) == 0 {
		return nil
	}
	body, err := json.Marshal(encode(spans))
	if err != nil {
		return fmt.Errorf("encode spans: %w", err)
	}
	pause := firstPause
	for try := 1; ; try++ {
		after, err := e.send(ctx, body)
		if err == nil || after < 0 || try == tries || ctx.Err() != nil {
			return err
		}
		wait := time.NewTimer(min(max(after, pause/2+rand.N(pause)), longest))
		select {
		case <-ctx.Done():
			wait.Stop()
			return err
		case <-wait.C:
		}
		pause *= 2
	}
}

// Shutdown implements sdk.SpanExporter: nothing is kept.
func (e *Exporter) Shutdown(context.Context) error { return nil }

// send is one try. After an error, another is of use after a while; negative: it is not.
func (e *Exporter) send(ctx context.Context, body []byte) (after time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL, bytes.NewReader(body))
	if err != nil {
		return -1, errors.New("send spans: the collector's address is not a URL")
	}
	maps.Copy(request.Header, e.Header)
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return 0, fmt.Errorf("send spans: %w", errors.Unwrap(err)) // without the URL, which may hold credentials
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20))
	switch response.StatusCode {
	case http.StatusOK, http.StatusAccepted, http.StatusNoContent:
		return 0, nil
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
		return time.Duration(max(seconds, 0)) * time.Second, fmt.Errorf("send spans: the collector answers %d", response.StatusCode)
	}
	return -1, fmt.Errorf("send spans: the collector answers %d: check its address and its headers", response.StatusCode)
}
