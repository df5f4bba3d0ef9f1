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
	x.question = x.reservation()
	d, err := x.ask(x.question)
	if err != nil || d.Outcome != keystore.InFlight || x.route.InFlight != "Wait" || !x.proxy.waiters.take(1) {
		return d, err
	}
	defer x.proxy.waiters.give(1)
	x.proxy.metrics.waiting.Inc()
	defer x.proxy.metrics.waiting.Dec()
	return x.wait(d)
}

// reservation is the question to the store.
func (x *exchange) reservation() keystore.Reservation {
	return keystore.Reservation{
		Client:      x.client,
		Key:         x.key,
		Fingerprint: x.same,
		Token:       keystore.NewToken(),
		Window:      x.route.window,
		Route:       x.route.Name,
		TakeOver:    x.route.OnUnknownOutcome != "Block",
	}
}

// wait asks again, less and less often, until the request in flight has ended, the time is over or the client is gone. It holds no connection
// to the store between two questions. The token stays the same: it has been given nothing yet.
func (x *exchange) wait(d keystore.Decision) (keystore.Decision, error) {
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
		d, err = x.ask(x.question)
	}
	return d, err
}

// ask is one question.
func (x *exchange) ask(reservation keystore.Reservation) (keystore.Decision, error) {
	x.sure = x.proxy.now().Add(x.generation.link.lease / 2)
	ctx, end := x.step(x.r.Context(), "reserve")
	d, doubtful, err := x.generation.link.reserve(ctx, reservation)
	end(err)
	if err != nil && doubtful {
		x.doubtful = true
	}
	return d, err
}

// reassure is for a reservation that may have ended by now, since this process was stopped, or waited, for so long. The store knows: it answers
// this request's token as before while nobody has taken the reservation over. Otherwise the request gets what any other would get now.
func (x *exchange) reassure() (seed [16]byte, mine bool) {
	question := x.question
	question.TakeOver = false // what another has left unknown is a new question
	d, err := x.ask(question)
	held := err == nil && (d.Outcome == keystore.New || d.Outcome == keystore.TakenOver)
	if held && x.isSure() {
		return d.Seed, true
	}
	x.settled = true
	if held {
		err = errStoreUnavailable // the answer took too long
	}
	if err != nil {
		x.doubtful = true
		x.storeUnavailable(err)
		return seed, false
	}
	if d.Outcome == keystore.Unknown && x.question.TakeOver {
		if d, err = x.ask(x.question); err != nil {
			x.storeUnavailable(err)
			return seed, false
		}
	}
	x.proceed(d)
	return seed, false
}

func (x *exchange) isSure() bool { return x.proxy.now().Before(x.sure) }

// storeUnavailable refuses, or lets the request through unprotected where the policy prefers that and the store is down: one that is merely busy may
// well know the key. A reservation that may have been made unseen is given back, or ends with the execution, whose outcome it does not know.
func (x *exchange) storeUnavailable(err error) {
	down := errors.Is(err, keystore.ErrUnavailable) && !errors.Is(err, errStoreBusy)
	if x.generation.config.Store.OnUnavailable != "PassThrough" || !down {
		x.giveUp(opRelease)
		x.refuse(errStoreUnavailable)
		return
	}
	defer x.giveUp(opUnknown)
	x.count("unprotected")
	x.rewind()
	x.w.Header().Set(headerStatus, "unprotected")
	x.proxy.forward.ServeHTTP(x.w, x.r)
}

// giveUp leaves it to the journal to end a reservation that may have been made unseen.
func (x *exchange) giveUp(op string) {
	if x.doubtful {
		r := x.record(op, nil)
		r.Doubtful = true
		x.proxy.settler.later(r)
	}
}

// rewind makes the request whole again after its body was read.
func (x *exchange) rewind() {
	x.r.Body, x.r.ContentLength, x.r.TransferEncoding = x.body.reader(), x.body.size(), nil
	x.r.Header.Del("Expect")
}
