// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// refers reports whether an answer is recorded by reference: the route wants it, it is a success with a body, and it says where on this app that is.
func (x *exchange) refers(response *http.Response) bool {
	status := response.StatusCode
	if x.route.ResponseStore != proxyconfig.ResponseReference || status < 200 || status > 299 || bodyless(status) || response.ContentLength == 0 {
		return false
	}
	return x.location(response.Header, x.r.Host) != nil
}

// location is the target that Location in header names on the app: nil for none, for several, and for one on another authority than host.
func (x *exchange) location(header http.Header, host string) *url.URL {
	lines := header["Location"]
	if len(lines) != 1 {
		return nil
	}
	to, err := url.Parse(lines[0])
	if err != nil || to.Opaque != "" || to.User != nil || lines[0] == "" {
		return nil
	}
	switch to.Scheme {
	case "", "http", "https":
	default:
		return nil
	}
	if to.Scheme != "" && to.Host == "" || to.Host != "" && authority(to.Host) != authority(host) {
		return nil
	}
	base := &url.URL{Path: x.r.URL.Path, RawPath: x.r.URL.RawPath}
	to.Scheme, to.Host = "", ""
	to = base.ResolveReference(to)
	to.Fragment, to.RawFragment = "", ""
	return to
}

// authority is a host and port in one spelling. Who ends TLS in front of the sidecar, if anybody does, is not known here, so neither is the scheme.
func authority(host string) string {
	host = strings.ToLower(host)
	for _, port := range []string{":80", ":443"} {
		if bare, found := strings.CutSuffix(host, port); found {
			return bare
		}
	}
	return host
}

// unkept is the record of a response without its body.
func (rt *route) unkept(response *http.Response, why keystore.Tombstone) *keystore.Answer {
	answer := &keystore.Answer{Tombstone: why, Status: response.StatusCode}
	if why == keystore.Referenced {
		answer.Header = rt.recorded(response.Header)
		for name := range answer.Header {
			if describesBody(name) {
				delete(answer.Header, name)
			}
		}
	}
	return answer
}

// describesBody is for the fields that are of a body, and so come with it.
func describesBody(name string) bool { return strings.HasPrefix(name, "Content-") || name == "Etag" }

// rebuild answers with what was recorded, and with the body that the app gives now, to this caller, at the recorded place. It reports every other
// outcome as a problem: nothing is executed again.
func (x *exchange) rebuild(answer *keystore.Answer) {
	to := x.location(answer.Header, recordedHost(answer.Header))
	if to == nil {
		x.refuse(&refusal{err: errNotReplayable, originalStatus: answer.Status})
		return
	}
	ctx, cancel := context.WithCancelCause(x.r.Context())
	defer cancel(nil)
	defer context.AfterFunc(x.proxy.ending, func() { cancel(errEnding) })()
	watch := &stopwatch{ctx: ctx, limit: x.route.timeout, timer: time.AfterFunc(x.route.timeout, func() { cancel(errUpstreamTimeout) })}
	defer watch.pause()
	to.Scheme, to.Host = x.proxy.upstream.url.Scheme, x.proxy.upstream.url.Host
	response, _, err := x.proxy.upstream.send(ctx, &http.Request{Method: http.MethodGet, URL: to, Host: x.r.Host, Header: x.rebuildHeader()})
	if err != nil {
		x.refuse(&refusal{err: errAnswerUnavailable, originalStatus: answer.Status})
		return
	}
	defer func() { _ = response.Body.Close() }()
	if err := unavailable(response, answer.Status); err != nil {
		x.refuse(err)
		return
	}
	x.assemble(answer, response, watch)
}

// recordedHost is the authority in a recorded Location: it was the app's own when it was recorded, whatever the host that a retry comes by.
func recordedHost(header http.Header) string {
	to, err := url.Parse(header.Get("Location"))
	if err != nil {
		return ""
	}
	return to.Host
}

// rebuildHeader is the question whether the answer may be replayed, and how the caller wants it.
func (x *exchange) rebuildHeader() http.Header {
	header := x.questionHeader()
	for _, name := range []string{"Accept", "Accept-Encoding", "Accept-Language"} {
		if values := x.r.Header[name]; len(values) > 0 {
			header[name] = values
		}
	}
	return header
}

// unavailable is why the app's word is no answer to replay; nil when it is one.
func unavailable(response *http.Response, originalStatus int) error {
	switch status := response.StatusCode; {
	case status == http.StatusOK, status == http.StatusNonAuthoritativeInfo, status == http.StatusNoContent:
		return nil
	case status == http.StatusUnauthorized:
		return &refusal{err: errUnauthorized, challenge: response.Header.Get("WWW-Authenticate")}
	case status == http.StatusForbidden:
		return errForbidden
	case status == http.StatusNotFound, status == http.StatusGone:
		return &refusal{err: errAnswerGone, originalStatus: originalStatus}
	case status >= 300 && status <= 399:
		return &refusal{err: errAnswerMoved, originalStatus: originalStatus}
	}
	return &refusal{err: errAnswerUnavailable, originalStatus: originalStatus}
}

// assemble sends the recorded status and header with the body, and what describes it, of response. A body without its end ends the connection.
func (x *exchange) assemble(answer *keystore.Answer, response *http.Response, watch *stopwatch) {
	header := x.w.Header()
	for _, fields := range []http.Header{x.route.recorded(response.Header), answer.Header} {
		for name, values := range fields {
			header[name] = values
		}
	}
	header.Set(headerReplayed, "true")
	if response.StatusCode == http.StatusNoContent {
		header.Set("Content-Length", "0")
	} else if response.ContentLength >= 0 {
		header.Set("Content-Length", strconv.FormatInt(response.ContentLength, 10))
	}
	x.hurryClient()
	x.w.WriteHeader(answer.Status)
	y := &relay{x: x, response: response, watch: watch, started: true, length: -1}
	if y.pump() != nil {
		x.count(kindOf(errAnswerUnavailable).outcome)
		panic(http.ErrAbortHandler)
	}
	x.hurryClient()
	x.count("replayed")
}
