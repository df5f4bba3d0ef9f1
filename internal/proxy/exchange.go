// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"net/http"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// exchange is one request on an enforced route, on its way through the chain.
type exchange struct {
	proxy      *Proxy
	generation *generation
	route      *route
	w          http.ResponseWriter
	r          *http.Request
	control    *http.ResponseController

	client   string
	key      string
	body     *spooled
	same     keystore.Fingerprint
	question keystore.Reservation // its token is this request's
	sure     time.Time            // what the store gives, it gives until then at least
	// doubtful: a call failed that may have made a reservation.
	doubtful bool
	// settled: the store, or the journal, has been told how the execution ended, or there is nothing to tell.
	settled bool
}

// enforce is the chain. Everything before the reservation costs nothing that has to be undone.
func (x *exchange) enforce() {
	if x.route.lacksKey(x.r) && !x.route.KeyRequired {
		x.count("no_key")
		x.proxy.forward.ServeHTTP(x.w, x.r)
		return
	}
	if err := x.identify(); err != nil {
		x.refuse(err)
		return
	}
	if err := x.admit(); err != nil {
		x.refuse(err)
		return
	}
	defer x.dismiss()
	if err := x.takeBody(); err != nil {
		x.refuse(err)
		return
	}
	defer x.body.close()
	if err := x.readBody(); x.mayPass(err) {
		x.count("no_key")
		x.rewind()
		x.proxy.forward.ServeHTTP(x.w, x.r)
		return
	} else if err != nil {
		x.refuse(err)
		return
	}
	decision, err := x.reserve()
	if err != nil {
		x.storeUnavailable(err)
		return
	}
	x.proceed(decision)
}

// proceed does what the store's decision asks for.
func (x *exchange) proceed(d keystore.Decision) {
	switch d.Outcome {
	case keystore.New, keystore.TakenOver:
		x.settled = false
		defer x.safeguard()
		if d.Outcome == keystore.TakenOver && x.route.OnUnknownOutcome == "Reconcile" {
			x.reconcile(d.Seed)
			return
		}
		x.execute(d.Seed)
	case keystore.Completed:
		x.replay(d.Answer)
	case keystore.Mismatch:
		x.refuse(errMismatch)
	case keystore.InFlight:
		x.refuse(&refusal{err: errInFlight, retryAfter: d.LeaseRemaining})
	case keystore.Unknown:
		x.refuse(errOutcomeUnknown)
	default:
		x.refuse(errStoreUnavailable) // an outcome that this version does not know decides nothing
	}
}

// admit takes one of the places for requests in flight. While results wait for the store in numbers, no more may come to be.
func (x *exchange) admit() error {
	if x.proxy.settler.full() || !x.proxy.inFlight.take(1) {
		return errOverloaded
	}
	x.proxy.metrics.inFlight.Inc()
	return nil
}

func (x *exchange) dismiss() {
	x.proxy.inFlight.give(1)
	x.proxy.metrics.inFlight.Dec()
}

// identify finds the client, then the key if it is in the header, then refuses what the chain cannot take.
func (x *exchange) identify() (err error) {
	if x.client, err = x.generation.identity.of(x.r); err != nil {
		return err
	}
	if !x.route.keyIsInBody(x.r) {
		x.key, err = x.route.keyInHeader(x.r)
	} else if x.route.KeySource == proxyconfig.KeyCloudEvent {
		err = checkEvent(x.r.Header)
	}
	if err != nil {
		return err
	}
	if err := checkUpgrade(x.r); err != nil {
		return err
	}
	return x.checkConnection()
}

// takeBody reads the body.
func (x *exchange) takeBody() (err error) {
	if x.r.ContentLength != 0 {
		x.r.Body = &impatient{ReadCloser: x.r.Body, control: x.control, deadline: x.proxy.now().Add(x.proxy.limits.ClientTimeout)}
	}
	if x.body, err = x.proxy.spool.take(x.r); err != nil {
		x.body.close()
	}
	return err
}

// readBody makes the fingerprint, and finds the key if it is in the body.
func (x *exchange) readBody() (err error) {
	x.same = x.route.fingerprint(x.r, x.body)
	if x.route.keyIsInBody(x.r) {
		x.key, err = x.route.keyInBody(x.r, x.body, x.same)
	}
	return err
}

// mayPass is for a request whose body turns out to hold no key where none is required.
func (x *exchange) mayPass(err error) bool {
	return errors.Is(err, errKeyMissing) && !x.route.KeyRequired
}

// refuse answers with the problem of err.
func (x *exchange) refuse(err error) {
	key := x.key
	if key == "" && x.route.KeyHeader != "" {
		key = x.r.Header.Get(x.route.KeyHeader)
	}
	x.hurryClient()
	x.count(writeProblem(x.w, err, key).outcome)
}

func (x *exchange) count(outcome string) {
	x.proxy.count(x.route.Name, x.generation, outcome)
	x.traceOutcome(outcome)
}

// safeguard ends a reservation whose handling ended in a way that nobody thought of: its outcome is unknown.
func (x *exchange) safeguard() {
	if !x.settled {
		x.settle(opUnknown, nil)
	}
}

// settle tells the store, or the journal, how the execution ended.
func (x *exchange) settle(op string, answer *keystore.Answer) {
	x.settled = true
	ctx, end := x.step(x.r.Context(), op)
	defer end(nil)
	x.proxy.settler.settle(ctx, x.generation.link, x.record(op, answer))
}

func (x *exchange) record(op string, answer *keystore.Answer) *record {
	return &record{
		Op: op, Keyspace: x.generation.config.Keyspace, Store: x.generation.link.identity,
		Client: x.client, Key: x.key, Token: x.question.Token, Answer: answer,
	}
}
