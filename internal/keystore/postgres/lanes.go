// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"runtime"
	"slices"
	"sync"
)

const (
	// batchCalls bounds the calls in a batch: what each of them waits for the others, and the locks in one transaction. A server has room for
	// max_locks_per_transaction (64) in each of its connections.
	batchCalls = 48
	// batchBytes bounds what a batch carries. A larger call goes alone.
	batchBytes = 1 << 20
)

// lanes bounds how many calls are on their way to the server at once. A call that finds a lane free has it for itself. The calls that find none
// wait, and go together, as one batch, down the first lane that becomes free: nobody waits for a batch to fill.
type lanes struct {
	mu      sync.Mutex
	free    int
	waiting []*seat
	// send sends two calls or more, and tells each what has become of it.
	send func([]*seat)
}

// seat is a call in a lane, or on its way there.
type seat struct {
	call traveller
	told chan struct{}
	// left is closed when the caller has given up. A call that is not on its way by then is never sent: what its caller does next may overtake it.
	left <-chan struct{}

	// leads: the call has a lane for itself. Its caller sends it, and leaves.
	leads bool
	// settled: it was sent, and its outcome is known, or err is.
	settled bool
	err     error
	// patience with which it has to be sent by itself, outside the lanes, when neither holds.
	patience patience
}

func (s *seat) hasLeft() bool {
	select {
	case <-s.left:
		return true
	default:
		return false
	}
}

// enter waits until t may go, or has gone.
func (l *lanes) enter(ctx context.Context, t traveller) (*seat, error) {
	s := &seat{call: t, left: ctx.Done()}
	l.mu.Lock()
	if l.free > 0 {
		l.free--
		l.mu.Unlock()
		s.leads = true
		return s, nil
	}
	s.told = make(chan struct{})
	l.waiting = append(l.waiting, s)
	l.mu.Unlock()
	select {
	case <-s.told:
		return s, nil
	case <-s.left:
		l.abandon(s)
		return nil, ctx.Err()
	}
}

// abandon takes s out of those who wait. Where it is too late for that, s may be given a lane though nobody waits for it any more, and gives it back.
func (l *lanes) abandon(s *seat) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting, s); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
		return
	}
	go func() {
		<-s.told
		if s.leads {
			l.leave()
		}
	}()
}

// leave frees the lane, or hands it to those who wait.
func (l *lanes) leave() {
	l.mu.Lock()
	batch := l.next()
	if len(batch) == 0 {
		l.free++
	}
	l.mu.Unlock()
	switch len(batch) {
	case 0:
	case 1:
		batch[0].leads = true
		close(batch[0].told)
	default:
		go l.carry(batch)
	}
}

func (l *lanes) carry(batch []*seat) {
	l.send(batch)
	for _, s := range batch {
		close(s.told)
	}
	// Callers that have been answered, and call again at once, go with the next batch rather than behind it.
	runtime.Gosched()
	l.leave()
}

// next takes the calls that go together, in the order in which they came. Nothing of them is kept here: they may be large.
func (l *lanes) next() []*seat {
	n, size := 0, 0
	for n < len(l.waiting) && n < batchCalls && (n == 0 || size+l.waiting[n].call.bytes() <= batchBytes) {
		size += l.waiting[n].call.bytes()
		n++
	}
	batch := slices.Clone(l.waiting[:n])
	l.waiting = slices.Delete(l.waiting, 0, n)
	return batch
}
