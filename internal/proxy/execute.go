// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"encoding/hex"
	"errors"
	"maps"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// errEnding ends what is in flight when this process has to end.
var errEnding = errors.New("proxy is ending")

// execute sends the request to the app, once, and hands the answer on. Neither a client that goes away nor one that is slow stops it.
func (x *exchange) execute(seed [16]byte) {
	if !x.isSure() {
		var mine bool
		if seed, mine = x.reassure(); !mine {
			return
		}
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(x.r.Context()))
	defer cancel(nil)
	defer context.AfterFunc(x.proxy.ending, func() { cancel(errEnding) })()
	watch := &stopwatch{ctx: ctx, limit: x.route.timeout, timer: time.AfterFunc(x.route.timeout, func() { cancel(errUpstreamTimeout) })}
	defer watch.pause()

	out, begin := x.outgoing(seed), x.proxy.now()
	spanned, end := x.step(ctx, "upstream")
	x.continueTrace(spanned, out.Header)
	response, untouched, err := x.proxy.upstream.send(spanned, out)
	end(err)
	x.proxy.metrics.observe(x.proxy.metrics.upstream, begin)
	if err != nil {
		x.unanswered(untouched, watch.cause())
		return
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode < http.StatusOK {
		x.unanswered(false, errUpstreamFailed) // a switch of protocols that nobody asked for
		return
	}
	x.relay(response, watch)
}

// stopwatch measures the app's time and stops the app at the limit.
type stopwatch struct {
	ctx   context.Context // of the request to the app
	limit time.Duration
	timer *time.Timer
}

func (s *stopwatch) pause() { s.timer.Stop() }

// resume gives the app the whole of its time again.
func (s *stopwatch) resume() { s.timer.Reset(s.limit) }

// cause is why the app was stopped; nil when it was not.
func (s *stopwatch) cause() error { return context.Cause(s.ctx) }

// unanswered ends an execution that got no answer: as if it had never begun when nothing was sent, and otherwise with its outcome unknown.
func (x *exchange) unanswered(untouched bool, cause error) {
	if untouched {
		x.settle(opRelease, nil)
		x.refuse(errUpstreamUnreachable)
		return
	}
	x.settle(opUnknown, nil)
	if errors.Is(cause, errUpstreamTimeout) {
		x.refuse(errUpstreamTimeout)
		return
	}
	x.refuse(errUpstreamFailed)
}

// attempt is what the app may call its attempt by.
func (x *exchange) attempt() string {
	held := keystore.Ownership{Client: x.client, Key: x.key, Token: x.question.Token}
	return held.Text(x.generation.config.Keyspace)
}

// outgoing is the request as the app gets it.
func (x *exchange) outgoing(seed [16]byte) *http.Request {
	u := *x.r.URL
	u.Scheme, u.Host, u.User = x.proxy.upstream.url.Scheme, x.proxy.upstream.url.Host, nil
	header := http.Header(maps.Collect(endToEnd(x.r.Header)))
	delete(header, "Expect") // the body is here already
	header[headerReservation] = []string{x.attempt()}
	header[headerSeed] = []string{formatUUID(seed)}
	if strings.EqualFold(x.r.Header.Get("Te"), "trailers") {
		header.Set("Te", "trailers") // gRPC servers insist on it, and trailers do pass
	}
	addForwarded(header, x.r)
	if _, ok := header["User-Agent"]; !ok {
		header["User-Agent"] = nil // else net/http sends its own
	}
	return &http.Request{
		Method: x.r.Method, URL: &u, Host: x.r.Host, Header: header, Body: x.body.reader(), ContentLength: x.body.size(),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
}

// addForwarded appends the peer to X-Forwarded-For. Everything else that such fields say, the app still sees in the request itself.
func addForwarded(header http.Header, in *http.Request) {
	peer, _, err := net.SplitHostPort(in.RemoteAddr)
	if err == nil {
		for _, value := range header["X-Forwarded-For"] {
			peer = value + ", " + peer
		}
		header.Set("X-Forwarded-For", peer)
	}
}

// formatUUID is the form of https://www.rfc-editor.org/rfc/rfc9562#section-4
func formatUUID(id [16]byte) string {
	text := make([]byte, 0, 36)
	for i, b := range id {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			text = append(text, '-')
		}
		text = hex.AppendEncode(text, []byte{b})
	}
	return string(text)
}
