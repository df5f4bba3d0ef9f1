// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"net"
	"time"
)

const (
	// lastWords is how long requests that were ended, and the store, have at the very end.
	lastWords = 5 * time.Second
	drainPoll = 100 * time.Millisecond
)

// drain ends a process so that no request is lost: unready, then deaf, then idle, then retired.
func (s *server) drain(ctx context.Context) error {
	s.admin.ready.Store(false)
	s.settings.Log.Info("proxy is draining")
	s.linger(ctx)
	err := s.finish(ctx)
	last := lastWords
	if records, _, _ := s.proxy.settler.journal.size(); records > 0 {
		last = max(last, s.settings.DrainTimeout) // what the store does not take now is lost with the pod's disk
	}
	closing, cancel := context.WithTimeout(ctx, last)
	defer cancel()
	if closeErr := s.proxy.Close(closing); closeErr != nil {
		// The store is away: the journal keeps what it holds, and the lease ends by itself.
		s.settings.Log.Warn("proxy ended without the key store", "error", closeErr)
	}
	return errors.Join(err, s.probes.Close())
}

// linger serves on while the news that this process ends travels to whoever sends to it. When the app itself has ended there is nothing to wait
// for: Kubernetes ends a sidecar after the app.
func (s *server) linger(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.settings.DrainDelay)
	defer cancel()
	poll := time.NewTicker(drainPoll)
	defer poll.Stop()
	for {
		if s.idle() && !s.appListens(ctx) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		}
	}
}

func (s *server) idle() bool { return s.proxy.active.Load() == 0 }

func (s *server) appListens(ctx context.Context) bool {
	dialer := net.Dialer{Timeout: drainPoll}
	conn, err := dialer.DialContext(ctx, "tcp", s.proxy.upstream.address())
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// finish stops accepting and waits for requests in flight; those that take longer than DrainTimeout are ended.
func (s *server) finish(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, s.settings.DrainTimeout)
	defer cancel()
	err := s.traffic.Shutdown(waiting)
	if err == nil {
		err = s.proxy.wait(waiting)
	}
	if err == nil {
		return nil
	}
	s.settings.Log.Warn("requests in flight are ended", "count", s.proxy.active.Load())
	s.proxy.EndRequests()
	ending, cancel := context.WithTimeout(ctx, lastWords)
	defer cancel()
	if err := s.proxy.wait(ending); err != nil {
		s.settings.Log.Error("requests in flight are abandoned", "count", s.proxy.active.Load())
	}
	return s.traffic.Close()
}

// wait returns when no request is being handled.
func (p *Proxy) wait(ctx context.Context) error {
	poll := time.NewTicker(drainPoll / 10)
	defer poll.Stop()
	for p.active.Load() > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-poll.C:
		}
	}
	return nil
}
