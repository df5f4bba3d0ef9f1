// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// audit changes nothing for the client: it counts what enforce would have done, records as enforce would, and lets every request through.
func (x *exchange) audit() {
	outcome, mine := x.examine()
	x.count(outcome)
	if x.body != nil {
		defer x.body.close()
	}
	defer x.giveUp(opUnknown)
	if mine {
		x.r = x.r.WithContext(context.WithValue(x.r.Context(), auditKey{}, x))
		defer x.safeguard()
	}
	x.proxy.forward.ServeHTTP(x.w, x.r)
}

// examine is the chain up to the reservation. It reports the outcome in the metrics, and whether the reservation is held.
func (x *exchange) examine() (outcome string, mine bool) {
	if x.route.lacksKey(x.r) && !x.route.KeyRequired {
		return "no_key", false
	}
	if err := x.identify(); err != nil {
		return kindOf(err).outcome, false
	}
	if x.r.ContentLength < 0 {
		return "unexamined", false // to wait for the end of a body that the client may send in turn with the answer would change something
	}
	if err := x.admit(); err != nil {
		return kindOf(err).outcome, false
	}
	defer x.dismiss()
	body, err := x.proxy.spool.take(x.r)
	if err != nil {
		x.r.Body = body.withRest(x.r.Body)
		return kindOf(err).outcome, false
	}
	x.body = body
	if err := x.readBody(); x.mayPass(err) {
		x.r.Body = x.body.reader()
		return "no_key", false
	} else if err != nil {
		x.r.Body = x.body.reader()
		return kindOf(err).outcome, false
	}
	x.question = x.reservation()
	d, err := x.ask(x.question)
	x.r.Body = x.body.reader()
	if err != nil {
		return kindOf(errStoreUnavailable).outcome, false
	}
	return auditOutcome(d)
}

func auditOutcome(d keystore.Decision) (outcome string, mine bool) {
	switch d.Outcome {
	case keystore.New, keystore.TakenOver:
		return "executed", true
	case keystore.Completed:
		if d.Answer != nil && d.Answer.Tombstone != "" && d.Answer.Tombstone != keystore.Referenced {
			return kindOf(errNotReplayable).outcome, false
		}
		return "replayed", false
	case keystore.Mismatch:
		return kindOf(errMismatch).outcome, false
	case keystore.InFlight:
		return kindOf(errInFlight).outcome, false
	default:
		return kindOf(errOutcomeUnknown).outcome, false
	}
}

// auditKey is where a request's context has its exchange.
type auditKey struct{}

// watchResponse records what passes to the client of an audited request.
func watchResponse(response *http.Response) error {
	x, ok := response.Request.Context().Value(auditKey{}).(*exchange)
	if !ok || response.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	w := &watched{ReadCloser: response.Body, x: x, response: response, keep: !isStream(response.Header), why: keystore.Streamed}
	if x.refers(response) {
		w.keep, w.why = false, keystore.Referenced
	}
	response.Body = w
	return nil
}

// watched keeps a copy of a body that passes.
type watched struct {
	io.ReadCloser
	x        *exchange
	response *http.Response
	body     []byte
	keep     bool
	why      keystore.Tombstone
}

func (b *watched) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.keep && int64(len(b.body)+n) > b.x.route.ResponseMaxBytes || b.keep && !b.x.proxy.memory.take(int64(n)) {
		b.keep, b.why = false, keystore.TooLarge
	}
	if b.keep {
		b.body = append(b.body, p[:n]...)
	}
	if errors.Is(err, io.EOF) && !b.x.settled {
		b.x.conclude(b.response, b.answer())
	}
	return n, err
}

func (b *watched) answer() *keystore.Answer {
	if !b.keep {
		return b.x.route.unkept(b.response, b.why)
	}
	return b.x.route.answer(b.response, b.body)
}

func (b *watched) Close() error {
	b.x.proxy.memory.give(int64(len(b.body)))
	b.body = nil
	return b.ReadCloser.Close()
}
