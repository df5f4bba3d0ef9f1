// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// problemBase is followed by the slug: a problem's type. https://www.rfc-editor.org/rfc/rfc9457#section-3.1.1
const problemBase = "https://idempotency.dev/problems/"

// The refusals. What wraps one of them is a detail for the client and holds nothing but what the client sent or the policy publishes.
var (
	errPathAmbiguous       = errors.New("the path can be read as two different routes")
	errUpgrade             = errors.New("this route cannot be upgraded to another protocol")
	errConnection          = errors.New("the Connection header names a field that the request is told apart by")
	errNoClient            = errors.New("the client is not identified")
	errKeyMissing          = errors.New("the request has no idempotency key")
	errKeyInvalid          = errors.New("the idempotency key is not valid")
	errBodyTooLarge        = errors.New("the body is larger than this service takes")
	errBodyTimeout         = errors.New("the body did not arrive in time")
	errBodyIncomplete      = errors.New("the body ended early")
	errOverloaded          = errors.New("too many requests at once")
	errStoreUnavailable    = errors.New("the key store cannot be asked now; the request was not executed")
	errMismatch            = errors.New("the key was used for another request")
	errInFlight            = errors.New("a request with this key is being executed")
	errOutcomeUnknown      = errors.New("an earlier request with this key may or may not have taken effect")
	errNotReplayable       = errors.New("the request was executed and its answer was not kept")
	errAnswerGone          = errors.New("the request was executed, and what it has made is not there, or not for this caller")
	errAnswerMoved         = errors.New("the request was executed, and what it has made is elsewhere by now")
	errAnswerUnavailable   = errors.New("the request was executed, and the service does not give the answer now")
	errUpstreamUnreachable = errors.New("the service cannot be reached; the request was not executed")
	errUpstreamFailed      = errors.New("the service did not answer; the request may have taken effect")
	errUpstreamTimeout     = errors.New("the service did not answer in time; the request may have taken effect")
)

// kind is how a refusal looks to a client.
type kind struct {
	err       error
	status    int
	slug      string
	title     string
	outcome   string // in the metrics
	retryable bool   // the same request may succeed later
}

// kinds is the one table from refusal to problem.
var kinds = []kind{
	{errPathAmbiguous, http.StatusBadRequest, "path-ambiguous", "Path is ambiguous", "path_ambiguous", false},
	{errUpgrade, http.StatusBadRequest, "upgrade-refused", "Upgrade is refused", "upgrade_refused", false},
	{errConnection, http.StatusBadRequest, "connection-invalid", "Connection header is not valid", "connection_invalid", false},
	{errNoClient, http.StatusUnauthorized, "client-unidentified", "Client is not identified", "client_unidentified", false},
	{errNoKeys, http.StatusServiceUnavailable, "client-unverifiable", "Client cannot be verified now", "client_unverifiable", true},
	{errKeyMissing, http.StatusBadRequest, "key-missing", "Idempotency key is missing", "key_missing", false},
	{errKeyInvalid, http.StatusBadRequest, "key-invalid", "Idempotency key is not valid", "key_invalid", false},
	{errBodyTooLarge, http.StatusRequestEntityTooLarge, "body-too-large", "Body is too large", "body_too_large", false},
	{errBodyTimeout, http.StatusRequestTimeout, "body-timeout", "Body did not arrive in time", "body_timeout", true},
	{errBodyIncomplete, http.StatusBadRequest, "body-incomplete", "Body is incomplete", "body_incomplete", true},
	{errOverloaded, http.StatusServiceUnavailable, "overloaded", "Too many requests at once", "overloaded", true},
	{errStoreUnavailable, http.StatusServiceUnavailable, "store-unavailable", "Key store is unavailable", "store_unavailable", true},
	{errMismatch, http.StatusUnprocessableEntity, "key-reused", "Idempotency key was used for another request", "mismatch", false},
	{errInFlight, http.StatusConflict, "in-flight", "Request is being executed", "in_flight", true},
	{errOutcomeUnknown, http.StatusConflict, "outcome-unknown", "Outcome of an earlier request is not known", "unknown", false},
	{errNotReplayable, http.StatusConflict, "answer-not-kept", "Request was executed, its answer was not kept", "not_replayable", false},
	{errUnauthorized, http.StatusUnauthorized, "replay-unauthorized", "Credentials are not accepted for the replay", "replay_unauthorized", false},
	{errForbidden, http.StatusForbidden, "replay-forbidden", "Caller may not have the answer", "replay_forbidden", false},
	{errUnauthorizer, http.StatusServiceUnavailable, "replay-undecided", "Service does not say whether the caller may have the answer", "replay_undecided", true},
	{errAnswerGone, http.StatusConflict, "answer-gone", "Request was executed, what it has made is gone", "answer_gone", false},
	{errAnswerMoved, http.StatusConflict, "answer-moved", "Request was executed, what it has made has moved", "answer_moved", false},
	{errAnswerUnavailable, http.StatusServiceUnavailable, "answer-unavailable", "Answer cannot be had now", "answer_unavailable", true},
	{errUpstreamUnreachable, http.StatusBadGateway, "upstream-unreachable", "Service cannot be reached", "upstream_unreachable", true},
	{errUpstreamFailed, http.StatusBadGateway, "upstream-failed", "Service did not answer", "upstream_failed", false},
	{errUpstreamTimeout, http.StatusGatewayTimeout, "upstream-timeout", "Service did not answer in time", "upstream_timeout", false},
}

// kindOf is the row of err. Every refusal has one: a test lists them.
func kindOf(err error) kind {
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return k
		}
	}
	return kind{err, http.StatusInternalServerError, "internal", "Internal error", "internal", false}
}

// problem is the document. https://www.rfc-editor.org/rfc/rfc9457
type problem struct {
	Type      string `json:"type"`
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Detail    string `json:"detail"`
	Retryable bool   `json:"retryable"`
	Key       string `json:"key,omitempty"`
	// OriginalStatus is that of an answer that was not kept.
	OriginalStatus int `json:"originalStatus,omitempty"`
}

// refusal is a problem with what it depends on beside its kind.
type refusal struct {
	err            error
	retryAfter     time.Duration
	originalStatus int
	challenge      string
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// writeProblem answers with the problem of err; key is echoed as far as it is safe.
func writeProblem(w http.ResponseWriter, err error, key string) kind {
	k := kindOf(err)
	document := problem{Type: problemBase + k.slug, Title: k.title, Status: k.status, Detail: err.Error(), Retryable: k.retryable, Key: echo(key)}
	header := w.Header()
	var r *refusal
	if errors.As(err, &r) {
		document.OriginalStatus = r.originalStatus
		if r.challenge != "" {
			header.Set("WWW-Authenticate", r.challenge)
		}
	} else {
		r = &refusal{}
	}
	if k.retryable || r.retryAfter > 0 {
		header.Set("Retry-After", strconv.FormatInt(retrySeconds(r.retryAfter), 10))
	}
	body, _ := json.Marshal(document) // strings and numbers cannot fail
	header.Set("Content-Type", "application/problem+json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	header.Set("Cache-Control", "no-store")
	header.Set("Link", fmt.Sprintf(`<%s>; rel="describedby"`, wellKnownPath))
	w.WriteHeader(k.status)
	_, _ = w.Write(body) // the client may be gone: there is nobody to tell
	return k
}

// retrySeconds rounds up, and is never 0, which would invite a busy loop, nor more than a minute.
func retrySeconds(d time.Duration) int64 {
	return min(max(int64((d+time.Second-1)/time.Second), 1), 60)
}

// echo is at most 64 bytes of a key, without what could be anything but text on a terminal or in a page.
func echo(key string) string {
	const most = 64
	safe := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || strings.ContainsRune("<>&\"'`", r) {
			return '?'
		}
		return r
	}, key)
	if len(safe) > most {
		return safe[:most] + "..."
	}
	return safe
}
