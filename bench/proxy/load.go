// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	payload = `{"amount":1200,"currency":"EUR"}`
	answer  = `{"id":"pay_0123456789","amount":1200,"currency":"EUR","status":"captured"}`
)

// workload is what clients send.
type workload struct {
	path    string
	clients int
	replay  bool // every client repeats one key
}

// result of a turn.
type result struct {
	requests int
	rate     float64 // per second
	p99      time.Duration
	cpu      float64 // microseconds of the system's own per request
	allocs   float64 // per request; 0 where the system does not tell
}

// drive keeps w.clients connections busy, each with one request after another, for as long as turn. The first error ends it.
func drive(ctx context.Context, address string, w workload, turn time.Duration) (int, float64, time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	run := rand.Text()
	latencies := make([][]time.Duration, w.clients)
	clients := make([]*client, w.clients)
	for i := range clients {
		c, err := dial(ctx, address, w.path)
		if err != nil {
			return 0, 0, 0, err
		}
		defer func() { _ = c.conn.Close() }()
		if w.replay {
			if err := c.send(fmt.Sprint(run, i), false); err != nil {
				return 0, 0, 0, err
			}
		}
		clients[i] = c
	}
	var group sync.WaitGroup
	begin := time.Now()
	for i, c := range clients {
		group.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				key := fmt.Sprint(run, i)
				if !w.replay {
					key = fmt.Sprint(run, i, " ", n)
				}
				sent := time.Now()
				if sent.Sub(begin) >= turn {
					return
				}
				if err := c.send(key, w.replay); err != nil {
					cancel(err)
					return
				}
				latencies[i] = append(latencies[i], time.Since(sent))
			}
		})
	}
	group.Wait()
	took := time.Since(begin)
	if err := context.Cause(ctx); err != nil {
		return 0, 0, 0, err
	}
	all := slices.Concat(latencies...)
	if len(all) < 50 {
		return 0, 0, 0, fmt.Errorf("only %d samples", len(all))
	}
	slices.Sort(all)
	return len(all), float64(len(all)) / took.Seconds(), all[len(all)*99/100], nil
}

// client is one connection that sends payments.
type client struct {
	conn   net.Conn
	reader *bufio.Reader
	path   string
	out    bytes.Buffer
}

func dial(ctx context.Context, address, path string) (*client, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &client{conn: conn, reader: bufio.NewReader(conn), path: path}, nil
}

// send sends one payment, and checks that the answer is the app's, and a replay where it has to be one.
func (c *client) send(key string, replay bool) error {
	c.out.Reset()
	fmt.Fprintf(&c.out, "POST %s HTTP/1.1\r\nHost: shop\r\nX-Client-Id: alice\r\nIdempotency-Key: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		c.path, key, len(payload), payload)
	if _, err := c.conn.Write(c.out.Bytes()); err != nil {
		return err
	}
	text := textproto.NewReader(c.reader)
	status, err := text.ReadLine()
	if err != nil {
		return err
	}
	header, err := text.ReadMIMEHeader()
	if err != nil {
		return err
	}
	length, err := strconv.Atoi(header.Get("Content-Length"))
	if err != nil {
		return errors.New("an answer without a length")
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(c.reader, body); err != nil {
		return err
	}
	if len(status) < 12 || status[9:12] != "201" || string(body) != answer {
		return fmt.Errorf("answer %q: %.200q", status, body)
	}
	if replayed := header.Get("Idempotent-Replayed") == "true"; replayed != replay {
		return fmt.Errorf("replayed %v, want %v", replayed, replay)
	}
	return nil
}
