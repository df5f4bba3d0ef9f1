// SPDX-License-Identifier: Apache-2.0

package consumers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
)

// maxDeliveries of one message before a broker gives up on it. Workers that are killed use some up for what they had fetched.
const maxDeliveries = 20

// broker is a queue of messages.
type broker interface {
	// worker that consumes from the queue.
	worker() worker
	// publish sends messages, in order, and returns when the broker has them.
	publish(t *testing.T, ids ...string)
	// pending counts messages that wait to be delivered.
	pending(t *testing.T) int
	// givenUp counts messages that were delivered too often.
	givenUp(t *testing.T) int
}

func brokers() map[string]func(*testing.T) broker {
	return map[string]func(*testing.T) broker{"nats": newNATS, "rabbitmq": newRabbitMQ}
}

func each(t *testing.T, test func(*testing.T, broker)) {
	for name, start := range brokers() {
		t.Run(name, func(t *testing.T) { test(t, start(t)) })
	}
}

// TestKilled: killed before its commit, a consumer leaves no effect, and the next one has it; killed after it, the next one is told that it is there.
func TestKilled(t *testing.T) {
	each(t, func(t *testing.T, b broker) {
		for _, at := range []point{beforeCommit, afterCommit} {
			l := newLedger(t)
			w := b.worker()
			w.DSN, w.At, w.Log = l.dsn, at, true
			b.publish(t, fmt.Sprint("killed ", at))
			p, err := w.start()
			l.must(err)
			if err := p.wait(); !errors.Is(err, errKilled) {
				t.Fatalf("%s: %v", at, err)
			}
			want := 0
			if at == afterCommit {
				want = 1
			}
			if all, _ := l.effects(); all != want {
				t.Errorf("killed %s: %d effects, want %d", at, all, want)
			}
			w.At = nowhere
			p, err = w.start()
			l.must(err)
			var first bool
			l.until("the message is delivered again", func() bool {
				return l.conn.QueryRow(t.Context(), "SELECT first FROM outcomes").Scan(&first) == nil
			})
			l.must(p.stop())
			if all, _ := l.effects(); all != 1 || first != (at == beforeCommit) {
				t.Errorf("killed %s, delivered again: %d effects; the second delivery is first: %t", at, all, first)
			}
		}
	})
}

// TestPoison: a message that fails is delivered again until the broker gives it up, has no effect, and keeps no other from having theirs.
func TestPoison(t *testing.T) {
	each(t, func(t *testing.T, b broker) {
		l := newLedger(t)
		w := b.worker()
		w.DSN = l.dsn
		b.publish(t, "before", poison, "after")
		p, err := w.start()
		l.must(err)
		l.until("the broker gives the message up", func() bool { return b.givenUp(t) == 1 })
		l.until("the others have their effects", func() bool { all, _ := l.effects(); return all == 2 })
		l.must(p.stop())
		if n := b.pending(t); n != 0 {
			t.Errorf("%d messages are left", n)
		}
	})
}

// TestLoad: messages with a fifth of duplicates, for consumers at three isolation levels that are killed at random, of which one comes and one goes
// meanwhile. Every message has one effect.
func TestLoad(t *testing.T) {
	each(t, func(t *testing.T, b broker) {
		l := newLedger(t)
		ids := make([]string, 0, *messages*6/5)
		for i := range *messages * 6 / 5 {
			ids = append(ids, fmt.Sprint("m", i%*messages))
		}
		rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		b.publish(t, ids...)
		var kills atomic.Int64
		var running sync.WaitGroup
		failed := make(chan error, 3)
		run := func(level pgx.TxIsoLevel) (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			w := b.worker()
			w.DSN, w.Level, w.Kill = l.dsn, level, *messages/30
			running.Go(func() {
				if err := w.keep(ctx, func() { kills.Add(1) }); err != nil {
					failed <- err
				}
			})
			return cancel
		}
		progress := func(want int) {
			t.Helper()
			l.until(fmt.Sprint(want, " messages have effects"), func() bool {
				select {
				case err := <-failed:
					t.Fatal(err)
				default:
				}
				_, distinct := l.effects()
				return distinct >= want
			})
		}
		leaves, stays := run(pgx.ReadCommitted), run(pgx.RepeatableRead)
		progress(*messages / 3)
		comes := run(pgx.Serializable)
		progress(*messages * 2 / 3)
		leaves()
		progress(*messages)
		stays()
		comes()
		running.Wait()
		last := b.worker() // for what was delivered to those who are gone
		last.DSN = l.dsn
		p, err := last.start()
		l.must(err)
		l.until("the queue is empty", func() bool { return b.pending(t) == 0 })
		l.must(p.stop())
		if all, distinct := l.effects(); all != *messages || distinct != *messages {
			t.Errorf("%d effects of %d messages, want %d of each", all, distinct, *messages)
		}
		if kills.Load() == 0 || b.givenUp(t) > 0 {
			t.Errorf("%d kills, %d messages given up", kills.Load(), b.givenUp(t))
		}
		t.Logf("%d messages, %d deliveries sent, %d consumers killed", *messages, len(ids), kills.Load())
	})
}
