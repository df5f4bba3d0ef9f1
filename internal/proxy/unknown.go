// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// reconcile asks the app whether the earlier execution took effect, while this request holds the reservation: 200 is the answer to replay, 404
// says that there was no effect and never will be, and everything else leaves the outcome unknown.
func (x *exchange) reconcile(seed [16]byte) {
	answer, absent := x.inquire(seed)
	switch {
	case absent:
		x.execute(seed)
	case answer != nil:
		x.settle(opComplete, answer)
		x.replay(answer)
	default:
		x.settle(opUnknown, nil)
		x.refuse(errOutcomeUnknown)
	}
}

// inquire sends GET reconcilePath with the key, what identifies the client, and the reservation that a 404 lets execute.
func (x *exchange) inquire(seed [16]byte) (answer *keystore.Answer, absent bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.r.Context()), x.route.timeout)
	defer cancel()
	defer context.AfterFunc(x.proxy.ending, cancel)()
	ctx, end := x.step(ctx, "reconcile")
	defer end(nil)
	header := x.keyHeader()
	header["User-Agent"], header["Accept-Encoding"] = nil, []string{"identity"}
	header[headerReservation], header[headerSeed] = []string{x.attempt()}, []string{formatUUID(seed)}
	for _, name := range []string{x.generation.identity.Header, "Authorization"} {
		if values := x.r.Header[name]; len(values) > 0 {
			header[name] = values
		}
	}
	x.continueTrace(ctx, header)
	to, err := url.ParseRequestURI(x.route.ReconcilePath)
	if err != nil {
		return nil, false // proxyconfig.Validate parsed it already
	}
	to.Scheme, to.Host = x.proxy.upstream.url.Scheme, x.proxy.upstream.url.Host
	response, _, err := x.proxy.upstream.send(ctx, &http.Request{Method: http.MethodGet, URL: to, Host: x.r.Host, Header: header})
	if err != nil {
		return nil, false
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, response.StatusCode == http.StatusNotFound
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, x.route.ResponseMaxBytes+1))
	if err != nil {
		return nil, false
	}
	if int64(len(body)) > x.route.ResponseMaxBytes {
		return &keystore.Answer{Tombstone: keystore.TooLarge, Status: response.StatusCode}, false
	}
	return &keystore.Answer{Status: response.StatusCode, Header: x.route.recorded(response.Header), Body: body}, false
}
