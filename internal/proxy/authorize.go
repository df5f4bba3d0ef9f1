// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/url"
)

var (
	errUnauthorized = errors.New("the service does not accept these credentials any more")
	errForbidden    = errors.New("the service does not let this caller have the answer")
	errUnauthorizer = errors.New("the service does not say whether this caller may have the answer")
)

const (
	headerReplayMethod = "Idempotency-Replay-Method"
	headerReplayTarget = "Idempotency-Replay-Target"
)

// credentials are what tells an app who asks. Nothing else of a request goes with the question whether its answer may be replayed: a field such as
// X-Original-URL could make another question of it.
var credentials = []string{"Authorization", "Cookie", "X-Api-Key"}

// authorize asks the app whether the caller may have the recorded answer: nil when it says so, with any 2xx.
func (x *exchange) authorize() error {
	if x.route.ReplayAuthorization == "" {
		return nil
	}
	to, err := url.ParseRequestURI(x.route.ReplayAuthorization)
	if err != nil {
		return errUnauthorizer // proxyconfig.Validate parsed it already
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), x.route.timeout)
	defer cancel()
	defer context.AfterFunc(x.proxy.ending, cancel)()
	to.Scheme, to.Host = x.proxy.upstream.url.Scheme, x.proxy.upstream.url.Host
	response, _, err := x.proxy.upstream.send(ctx, &http.Request{Method: http.MethodGet, URL: to, Host: x.r.Host, Header: x.questionHeader()})
	if err != nil {
		return errUnauthorizer
	}
	defer func() { _ = response.Body.Close() }()
	switch status := response.StatusCode; {
	case status >= 200 && status <= 299:
		return nil
	case status == http.StatusUnauthorized:
		return &refusal{err: errUnauthorized, challenge: response.Header.Get("WWW-Authenticate")}
	case status == http.StatusForbidden:
		return errForbidden
	}
	return errUnauthorizer
}

// questionHeader holds the credentials, the fields that are part of the request's identity, and what is to be replayed.
func (x *exchange) questionHeader() http.Header {
	header := http.Header{"User-Agent": nil}
	for _, list := range [][]string{credentials, x.route.FingerprintHeaders, {x.generation.identity.Header}} {
		for _, name := range list {
			if values := x.r.Header[name]; len(values) > 0 {
				header[name] = values
			}
		}
	}
	header[headerReplayMethod] = []string{x.r.Method}
	header[headerReplayTarget] = []string{x.r.URL.RequestURI()}
	addForwarded(header, x.r)
	return header
}
