// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/idempotency-dev/operator/internal/proxyconfig"
	"github.com/idempotency-dev/operator/test/sampleapp/payments"
)

// demo sends payments to the sample app through the proxy and compares what happens with what is promised.
type demo struct {
	url    string // of the proxy
	app    *payments.Service
	client string // name of the header
	key    string // name of the header
	out    io.Writer
}

// newDemo fails for a policy that does not enforce the sample app's payments for clients named in a header. The demo runs once it has a URL.
func newDemo(config proxyconfig.Config, app *payments.Service, out io.Writer) (*demo, error) {
	for _, route := range config.Routes {
		if route.Path == "/payments" && slices.Contains(route.Methods, http.MethodPost) && route.KeyRequired && route.KeyHeader != "" && config.Client.Type == "Header" && config.Mode == "Enforce" {
			return &demo{app: app, client: config.Client.Header, key: route.KeyHeader, out: out}, nil
		}
	}
	return nil, errors.New("the demo sends payments: it needs a policy with mode Enforce, client.header and a route for POST /payments that requires a key in a header; without --demo any policy can be tried")
}

// payment is a request of the demo.
type payment struct{ client, key, body string }

// reply is what came back.
type reply struct {
	status int
	header http.Header
	body   string
}

func (r reply) replayed() bool { return r.header.Get("Idempotent-Replayed") == "true" }

// step is a request and what is promised for it.
type step struct {
	what string
	payment
	status     int
	replays    bool // the first step's answer, byte for byte
	executions int  // how often the app executes because of it
}

func (d *demo) steps() []step {
	key := "demo-" + strings.ToLower(rand.Text()[:10]) // new in every run: a kept database remembers the last one's
	const euros = `{"amount":1200,"currency":"EUR"}`
	const failing = `{"amount":5,"currency":"EUR","simulate":{"status":503,"times":1}}`
	return []step{
		{"a payment", payment{"alice", key, euros}, http.StatusCreated, false, 1},
		{"the same payment again", payment{"alice", key, euros}, http.StatusCreated, true, 0},
		{"and once more, spelled differently", payment{"alice", `"` + key + `"`, `{ "currency": "EUR", "amount": 1200 }`}, http.StatusCreated, true, 0},
		{"another amount with that key", payment{"alice", key, `{"amount":1300,"currency":"EUR"}`}, http.StatusUnprocessableEntity, false, 0},
		{"no key", payment{"alice", "", euros}, http.StatusBadRequest, false, 0},
		{"no client", payment{"", key, euros}, http.StatusUnauthorized, false, 0},
		{"another client, same key", payment{"bob", key, euros}, http.StatusCreated, false, 1},
		{"a payment that the app answers 503", payment{"alice", key + "-503", failing}, http.StatusServiceUnavailable, false, 1},
		{"its retry", payment{"alice", key + "-503", failing}, http.StatusCreated, false, 1},
	}
}

// run sends everything to the proxy at url, writes a table of it, and fails when anything differs from what is promised.
func (d *demo) run(ctx context.Context, url string) error {
	d.url = url
	table := tabwriter.NewWriter(d.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "REQUEST\tANSWER\tAPP EXECUTED\tAS PROMISED")
	var broken []error
	row := func(what, answer string, executions int, err error) {
		verdict := "yes"
		if err != nil {
			verdict = "NO: " + err.Error()
			broken = append(broken, fmt.Errorf("%s: %w", what, err))
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", what, answer, times(executions), verdict)
	}
	var first reply
	for i, step := range d.steps() {
		before := d.app.Stats().Executions
		got, err := d.send(ctx, step.payment)
		if err != nil {
			return err
		}
		if i == 0 {
			first = got
		}
		executions := d.app.Stats().Executions - before
		row(step.what, describe(got), executions, step.check(first, got, executions))
	}
	answer, executions, err := d.burst(ctx, 20)
	if executions < 0 {
		return err
	}
	row("20 at once with one new key", answer, executions, err)
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	if len(broken) > 0 {
		return fmt.Errorf("a promise is broken: %w", errors.Join(broken...))
	}
	fmt.Fprintf(d.out, "\nEvery promise held: %d executions, none of them twice.\n", d.app.Stats().Executions)
	return nil
}

// check compares one answer with the promise.
func (s step) check(first, got reply, executions int) error {
	switch {
	case got.status != s.status:
		return fmt.Errorf("status %d, want %d", got.status, s.status)
	case executions != s.executions:
		return fmt.Errorf("executed %s, want %s", times(executions), times(s.executions))
	case got.replayed() != s.replays:
		return fmt.Errorf("replayed: %t, want %t", got.replayed(), s.replays)
	case !s.replays:
		return nil
	case got.body != first.body:
		return errors.New("the replay's body differs")
	case got.header.Get("Location") != first.header.Get("Location") || got.header.Get("ETag") != first.header.Get("ETag"):
		return errors.New("the replay's Location or ETag differs")
	case got.header.Get("Set-Cookie") != "":
		return errors.New("the replay sets a cookie")
	}
	return nil
}

// burst sends one new payment n times at once. Its executions are -1 when a request got no answer.
func (d *demo) burst(ctx context.Context, n int) (answer string, executions int, err error) {
	p := payment{"alice", "demo-" + strings.ToLower(rand.Text()[:10]), `{"amount":7,"currency":"EUR","simulate":{"sleepMillis":300}}`}
	replies, errs := make([]reply, n), make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { replies[i], errs[i] = d.send(ctx, p) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return "", -1, err
	}
	var originals, replays, conflicts int
	for _, r := range replies {
		switch {
		case r.status == http.StatusCreated && r.replayed():
			replays++
		case r.status == http.StatusCreated:
			originals++
		case r.status == http.StatusConflict && r.header.Get("Retry-After") != "":
			conflicts++
		}
	}
	answer = fmt.Sprintf("%d x 201, %d x 409, %d replayed", originals, conflicts, replays)
	executions = d.app.Stats().ByKey[p.key]
	switch {
	case executions != 1:
		err = fmt.Errorf("executed %s, want once", times(executions))
	case originals != 1 || originals+replays+conflicts != n:
		err = fmt.Errorf("want one original answer and %d replays or refusals", n-1)
	}
	return answer, executions, err
}

func (d *demo) send(ctx context.Context, p payment) (reply, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+"/payments", strings.NewReader(p.body))
	if err != nil {
		return reply{}, fmt.Errorf("make request: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	if p.client != "" {
		request.Header.Set(d.client, p.client)
	}
	if p.key != "" {
		request.Header.Set(d.key, p.key)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return reply{}, fmt.Errorf("send payment: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return reply{}, fmt.Errorf("read answer: %w", err)
	}
	return reply{status: response.StatusCode, header: response.Header, body: string(body)}, nil
}

// describe is an answer in a few words.
func describe(r reply) string {
	words := fmt.Sprintf("%d %s", r.status, http.StatusText(r.status))
	if location := r.header.Get("Location"); location != "" {
		words += " " + location[:min(len(location), len("/payments/pay_")+6)] + "..."
	}
	if r.replayed() {
		words += ", replayed"
	}
	return words
}

func times(n int) string {
	switch n {
	case 0:
		return "not"
	case 1:
		return "once"
	default:
		return fmt.Sprintf("%d times", n)
	}
}
