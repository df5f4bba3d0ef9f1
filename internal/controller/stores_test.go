// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/idempotency-dev/operator/internal/keystore/postgres"
)

// TestRecoveryIsNoticed adds up what may lie between the recovery of a store and the pass that sees it.
func TestRecoveryIsNoticed(t *testing.T) {
	if worst := probeUnhealthy + unhealthyShared + askTimeout; worst > 10*time.Second {
		t.Errorf("it takes up to %s", worst)
	}
}

// TestSilentStore shows that one pass waits for a server that says nothing, and not every pass.
func TestSilentStore(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	admin, err := postgres.OpenAdmin(t.Context(), "postgres://u:p@"+listener.Addr().String()+"/db?sslmode=disable", "idempotency")
	if err != nil {
		t.Fatal(err)
	}
	earlier := errors.New("what the last probe came to")
	s := &store{admin: admin, prepared: map[preparation]bool{}}
	s.last.Store(&answer{err: earlier, at: time.Now().Add(-time.Hour)})

	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	asking.Go(func() {
		_, err := s.probe(ctx, clock.RealClock{})
		if err == nil || errors.Is(err, earlier) {
			t.Errorf("who asks is told %v", err)
		}
	})
	silent, err := listener.Accept() // it is being asked from now on
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if _, err := s.probe(t.Context(), clock.RealClock{}); !errors.Is(err, earlier) {
		t.Errorf("meanwhile others are told %v", err)
	}
	cancel()
	asking.Wait()
	admin.Close()
}
