// SPDX-License-Identifier: Apache-2.0

package keystoretest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// lostAnswers: the server does what it is asked, and the connection breaks before its answer arrives. A caller that repeats its call, if the
// store has not done so, gets the answer that was lost.
func lostAnswers(b *bench) {
	wire := newWire(b.T, b.Addr)
	store := b.Open(b.T, wire.addr())
	ctx := bounded(b.T)
	// lose makes the call twice: through a store that has its statements ready, with the first answer lost.
	lose := func(call func() error) {
		b.Helper()
		before := wire.lost()
		wire.loseNext()
		err := call()
		if wire.lost() != before+1 {
			b.Fatalf("lost %d answers, want 1", wire.lost()-before)
		}
		if errors.Is(err, keystore.ErrUnavailable) {
			err = call()
		}
		b.must(err)
	}
	warm := func(i int) {
		r := b.request(fmt.Sprint("warm ", i))
		_, err := store.Reserve(ctx, r)
		b.must(err)
		b.must(store.MarkUnknown(ctx, owner(r)))
		b.must(store.Complete(ctx, owner(r), created()))
		_ = store.Release(ctx, owner(r))
		b.must(store.KeepAlive(ctx, b.holder, leaseTime))
	}
	reserve := func(r keystore.Reservation, want keystore.Outcome) func() error {
		return func() error {
			d, err := store.Reserve(ctx, r)
			if err == nil && d.Outcome != want {
				err = fmt.Errorf("reserve: %s, want %s", name(d.Outcome), name(want))
			}
			return err
		}
	}
	for i := range 5 {
		warm(i)
		completed := b.request(fmt.Sprint("completed ", i))
		lose(reserve(completed, keystore.New))
		b.expect(b.request(completed.Key), keystore.InFlight)
		warm(i + 100)
		lose(func() error { return store.Complete(ctx, owner(completed), created()) })
		b.sameAnswer(b.expect(b.request(completed.Key), keystore.Completed).Answer, created())

		unknown := b.request(fmt.Sprint("unknown ", i))
		b.expect(unknown, keystore.New)
		warm(i + 200)
		lose(func() error { return store.MarkUnknown(ctx, owner(unknown)) })
		again := b.request(unknown.Key)
		again.TakeOver = true
		warm(i + 300)
		lose(reserve(again, keystore.TakenOver))
		warm(i + 400)
		lose(func() error { return store.Release(ctx, owner(again)) })
		b.expect(b.request(unknown.Key), keystore.Unknown)

		released := b.request(fmt.Sprint("released ", i))
		b.expect(released, keystore.New)
		warm(i + 500)
		lose(func() error {
			if err := store.Release(ctx, owner(released)); !errors.Is(err, keystore.ErrNotOwner) {
				return err
			}
			return nil // the first attempt has done it
		})
		b.expect(b.request(released.Key), keystore.New)
	}
}

// serverAway: every call says ErrUnavailable, and works again when the server is back.
func serverAway(b *bench) {
	wire := newWire(b.T, b.Addr)
	store := b.Open(b.T, wire.addr())
	ctx := bounded(b.T)
	r := b.request("key")
	_, err := store.Reserve(ctx, r)
	b.must(err)
	wire.cut()
	for call, err := range map[string]error{
		"reserve":      func() error { _, err := store.Reserve(ctx, b.request("other")); return err }(),
		"complete":     store.Complete(ctx, owner(r), created()),
		"release":      store.Release(ctx, owner(r)),
		"mark unknown": store.MarkUnknown(ctx, owner(r)),
		"keep alive":   store.KeepAlive(ctx, b.holder, leaseTime),
		"retire":       store.Retire(ctx, b.holder),
		"check":        store.Check(ctx),
	} {
		if !errors.Is(err, keystore.ErrUnavailable) {
			b.Errorf("%s: %v, want ErrUnavailable", call, err)
		}
	}
	wire.heal()
	b.must(store.Complete(ctx, owner(r), created()))
	b.sameAnswer(b.expect(b.request("key"), keystore.Completed).Answer, created())
}

// callersDeadline: a call ends with its context, though the server never answers.
func callersDeadline(b *bench) {
	wire := newWire(b.T, b.Addr)
	store := b.Open(b.T, wire.addr())
	b.must(store.Check(bounded(b.T)))
	wire.stall()
	ctx, cancel := context.WithCancel(b.Context())
	result := make(chan error, 1)
	go func() {
		_, err := store.Reserve(ctx, b.request("key"))
		result <- err
	}()
	wire.awaitStalled()
	cancel()
	select {
	case err := <-result:
		b.fails(err, keystore.ErrUnavailable)
		b.fails(err, context.Canceled)
		wire.cut()
	case <-time.After(30 * time.Second):
		b.Fatal("the call outlives its context")
	}
}

// wire is a TCP proxy in front of a server, or of each server of a cluster, that loses answers on demand.
type wire struct {
	listeners []net.Listener

	mu      sync.Mutex
	open    map[net.Conn]bool
	down    bool
	losing  bool
	losses  int
	held    chan struct{} // not nil: answers wait for its end
	holding chan struct{}
}

func newWire(t testing.TB, servers string) *wire {
	w := &wire{open: map[net.Conn]bool{}, holding: make(chan struct{}, 1)}
	var serving sync.WaitGroup
	t.Cleanup(func() {
		for _, listener := range w.listeners {
			_ = listener.Close()
		}
		w.cut()
		serving.Wait()
	})
	for server := range strings.SplitSeq(servers, ",") {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		w.listeners = append(w.listeners, listener)
		serving.Go(func() { w.serve(listener, server) })
	}
	return w
}

// addr is where the servers are reached through the wire, in the form and order of Harness.Addr.
func (w *wire) addr() string {
	var addrs []string
	for _, listener := range w.listeners {
		addrs = append(addrs, listener.Addr().String())
	}
	return strings.Join(addrs, ",")
}

func (w *wire) serve(listener net.Listener, server string) {
	var links sync.WaitGroup
	defer links.Wait()
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		links.Go(func() { w.link(client, server) })
	}
}

func (w *wire) link(client net.Conn, addr string) {
	server, err := net.Dial("tcp", addr)
	if err != nil {
		_ = client.Close()
		return
	}
	if !w.track(client, server) {
		return
	}
	defer w.drop(client, server)
	var ways sync.WaitGroup
	ways.Go(func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	})
	buffer := make([]byte, 64<<10)
	for {
		n, err := server.Read(buffer)
		if n > 0 && !w.passes() {
			break
		}
		if n > 0 {
			if _, err := client.Write(buffer[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	_ = client.Close()
	_ = server.Close()
	ways.Wait()
}

// passes says whether bytes from the server reach the client; the connection breaks otherwise. While the wire is stalled it waits.
func (w *wire) passes() bool {
	w.mu.Lock()
	if held := w.held; held != nil {
		w.mu.Unlock()
		select {
		case w.holding <- struct{}{}:
		default:
		}
		<-held
		return false
	}
	defer w.mu.Unlock()
	if w.losing {
		w.losing = false
		w.losses++
		return false
	}
	return !w.down
}

func (w *wire) track(conns ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range conns {
		if w.down {
			_ = c.Close()
			continue
		}
		w.open[c] = true
	}
	return !w.down
}

func (w *wire) drop(conns ...net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range conns {
		delete(w.open, c)
	}
}

// loseNext lets the next answer get lost, and its connection with it.
func (w *wire) loseNext() { w.set(func() { w.losing = true }) }

// stall keeps every answer back, until the wire is cut.
func (w *wire) stall() { w.set(func() { w.held = make(chan struct{}) }) }

// awaitStalled waits until an answer is being kept back.
func (w *wire) awaitStalled() { <-w.holding }

// cut breaks every connection and lets none in.
func (w *wire) cut() {
	w.set(func() {
		w.down = true
		for c := range w.open {
			_ = c.Close()
		}
		if w.held != nil {
			close(w.held)
			w.held = nil
		}
	})
}

// heal lets connections in again.
func (w *wire) heal() { w.set(func() { w.down = false }) }

func (w *wire) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *wire) lost() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.losses
}
