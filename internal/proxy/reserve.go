// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
)

const (
	firstPoll = 10 * time.Millisecond
	lastPoll  = 250 * time.Millisecond
)

// reserve asks the store, and waits for a request in flight where the route says so.
func (x *exchange) reserve() (keystore.Decision, error) {
	reservation := x.reservation()
	d, err := x.ask(reservation)
	if err != nil || d.Outcome != keystore.InFlight || x.route.InFlight != "Wait" || !x.proxy.waiters.take(1) {
		return d, err
	}
	defer x.proxy.waiters.give(1)
	x.proxy.metrics.waiting.Inc()
	defer x.proxy.metrics.waiting.Dec()
	return x.wait(reservation, d)
}

// reservation is the question to the store.
func (x *exchange) reservation() keystore.Reservation {
	x.token = keystore.NewToken()
	return keystore.Reservation{
		Client:      x.client,
		Key:         x.key,
		Fingerprint: x.route.fingerprint(x.r, x.body),
		Token:       x.token,
		Window:      x.route.window,
		Route:       x.route.Name,
		TakeOver:    x.route.OnUnknownOutcome != "Block",
	}
}

// wait asks again, less and less often, until the request in flight has ended, the time is over or the client is gone. It holds no connection
// to the store between two questions. The token stays the same: it has been given nothing yet.
func (x *exchange) wait(reservation keystore.Reservation, d keystore.Decision) (keystore.Decision, error) {
	ctx, cancel := context.WithTimeout(x.r.Context(), x.route.maxWait)
	defer cancel()
	var err error
	for pause := firstPoll; err == nil && d.Outcome == keystore.InFlight; pause = min(2*pause, lastPoll) {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return d, nil
		case <-timer.C:
		}
		d, err = x.ask(reservation)
	}
	return d, err
}

// ask is one question. A reservation that may have been made unseen is given back: this request will not use it.
func (x *exchange) ask(reservation keystore.Reservation) (keystore.Decision, error) {
	d, doubtful, err := x.generation.link.reserve(x.r.Context(), reservation)
	if err != nil && doubtful {
		x.proxy.settler.later(x.record(opRelease, nil))
	}
	return d, err
}

// storeUnavailable refuses, or lets the request through unprotected where the policy prefers that.
func (x *exchange) storeUnavailable(err error) {
	if x.generation.config.Store.OnUnavailable != "PassThrough" || !errors.Is(err, keystore.ErrUnavailable) {
		x.refuse(errStoreUnavailable)
		return
	}
	x.count("unprotected")
	x.rewind()
	x.w.Header().Set(headerStatus, "unprotected")
	x.proxy.forward.ServeHTTP(x.w, x.r)
}

// rewind makes the request whole again after its body was read.
func (x *exchange) rewind() {
	x.r.Body, x.r.ContentLength, x.r.TransferEncoding = x.body.reader(), x.body.size(), nil
	x.r.Header.Del("Expect")
}
