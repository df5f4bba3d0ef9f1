// SPDX-License-Identifier: Apache-2.0

// Command client sends HTTP requests and prints one JSON line per response, in the order in which they arrive. The
// end-to-end tests run it inside a pod, where a caller of the product's users is.
//
// The lines are {"status","header","body"} or {"error"}: a request that got no response at all. It exits 0 whenever all
// requests were sent, whatever came back, for that is for the caller to judge.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

// config is what one run sends.
type config struct {
	url, method, body string
	header            http.Header
	count             int           // requests in all
	concurrency       int           // of them at a time
	timeout           time.Duration // for one request; zero means none
	sleep             bool          // send nothing: stay, for kubectl exec
}

// result is one line of output.
type result struct {
	Status int         `json:"status,omitempty"`
	Header http.Header `json:"header,omitempty"`
	Body   string      `json:"body,omitempty"`
	Error  string      `json:"error,omitempty"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "client:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	if c.sleep {
		<-ctx.Done()
		return nil
	}
	results := make(chan result)
	go send(ctx, c, results)
	encoder := json.NewEncoder(out)
	for r := range results {
		if err := encoder.Encode(r); err != nil {
			return fmt.Errorf("print result: %w", err)
		}
	}
	return ctx.Err()
}

func parse(args []string) (config, error) {
	c := config{header: http.Header{}}
	flags := flag.NewFlagSet("client", flag.ContinueOnError)
	flags.StringVar(&c.url, "url", "", "where to send")
	flags.StringVar(&c.method, "method", http.MethodGet, "HTTP method")
	flags.StringVar(&c.body, "body", "", "request body")
	flags.IntVar(&c.count, "count", 1, "requests to send in all")
	flags.IntVar(&c.concurrency, "concurrency", 1, "requests to send at a time")
	flags.DurationVar(&c.timeout, "timeout", time.Minute, "bound of one request, 0 for none")
	flags.BoolVar(&c.sleep, "sleep", false, "send nothing and stay until stopped")
	flags.Func("header", `one "Name: value"; may be repeated`, func(line string) error {
		name, value, found := strings.Cut(line, ":")
		if !found {
			return fmt.Errorf("header %q has no colon", line)
		}
		c.header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return config{}, err
	}
	if !c.sleep && (c.url == "" || c.count < 1 || c.concurrency < 1) {
		return config{}, fmt.Errorf("parse flags: -url is required, -count and -concurrency are at least 1")
	}
	return c, nil
}

// send closes results when every request has been answered.
func send(ctx context.Context, c config, results chan<- result) {
	defer close(results)
	// A transport without a pool: the tests count connections as little as they count on retries, and a request on a
	// new connection is never repeated by the transport.
	client := &http.Client{
		Timeout:       c.timeout,
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	turns := make(chan struct{}, c.count)
	for range c.count {
		turns <- struct{}{}
	}
	close(turns)
	var workers sync.WaitGroup
	for range min(c.concurrency, c.count) {
		workers.Go(func() {
			for range turns {
				results <- exchange(ctx, client, c)
			}
		})
	}
	workers.Wait()
}

func exchange(ctx context.Context, client *http.Client, c config) result {
	request, err := http.NewRequestWithContext(ctx, c.method, c.url, strings.NewReader(c.body))
	if err != nil {
		return result{Error: err.Error()}
	}
	request.Header = c.header.Clone()
	if host := request.Header.Get("Host"); host != "" {
		request.Host = host
	}
	response, err := client.Do(request)
	if err != nil {
		return result{Error: err.Error()}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return result{Status: response.StatusCode, Header: response.Header, Body: string(body), Error: err.Error()}
	}
	return result{Status: response.StatusCode, Header: response.Header, Body: string(body)}
}
