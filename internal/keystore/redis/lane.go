// SPDX-License-Identifier: Apache-2.0

package redis

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// senders of a lane: one batch each is on its way.
	senders = 4
	// maxBatch bounds the calls of a batch.
	maxBatch = 128
)

// errReplicas: fewer replicas than asked for have confirmed a write in time.
var errReplicas = errors.New("too few replicas have confirmed")

// command is one run of a script.
type command struct {
	script script
	keys   []string
	args   []any
	asking bool // the server is not the slot's owner yet
}

type reply struct {
	value any
	err   error
	short bool // too few replicas have it; err is nil
}

type call struct {
	command
	done chan reply // of capacity 1: nobody waits for a caller that has gone
}

// lane sends calls to one server. A call that finds a sender idle leaves at once and alone; while every sender waits for the server, calls gather and
// leave together: one write, one read, and one WAIT for all.
type lane struct {
	client   *redis.Client
	timeout  time.Duration
	replicas int
	calls    chan *call
}

func (s *servers) newLane(client *redis.Client) *lane {
	l := &lane{client: client, timeout: s.timeout, replicas: s.replicas, calls: make(chan *call)}
	for range senders {
		s.group.Go(func() { l.serve(s.ctx) })
	}
	return l
}

// do makes one call, and stops waiting for it when ctx ends; it may take effect all the same.
func (l *lane) do(ctx context.Context, c command) reply {
	waiting := &call{command: c, done: make(chan reply, 1)}
	select {
	case l.calls <- waiting:
	case <-ctx.Done():
		return reply{err: ctx.Err()}
	}
	select {
	case r := <-waiting.done:
		return r
	case <-ctx.Done():
		return reply{err: ctx.Err()}
	}
}

func (l *lane) serve(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case first := <-l.calls:
			l.send(ctx, l.gather(first))
		}
	}
}

// gather takes everybody along who is waiting already.
func (l *lane) gather(first *call) []*call {
	batch := []*call{first}
	for len(batch) < maxBatch {
		select {
		case c := <-l.calls:
			batch = append(batch, c)
		default:
			return batch
		}
	}
	return batch
}

func (l *lane) send(ctx context.Context, batch []*call) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	pipe := l.client.Pipeline()
	answers := make([]*redis.Cmd, len(batch))
	for i, c := range batch {
		if c.asking {
			pipe.Do(ctx, "ASKING")
		}
		answers[i] = pipe.EvalSha(ctx, c.script.sha, c.keys, c.args...)
	}
	var wait *redis.Cmd
	if l.replicas > 0 {
		wait = pipe.Do(ctx, "WAIT", l.replicas, (l.timeout / 4).Milliseconds())
	}
	_, failed := pipe.Exec(ctx)
	short := false
	if wait != nil {
		confirmed, err := wait.Int()
		short = err != nil || confirmed < l.replicas
	}
	for i, c := range batch {
		value, err := answers[i].Result()
		if value == nil && err == nil {
			// The driver says so of a command that it has not sent, such as when the server refused the password.
			if err = failed; err == nil {
				err = errReply
			}
		}
		c.done <- reply{value: value, err: err, short: short && err == nil}
	}
}
