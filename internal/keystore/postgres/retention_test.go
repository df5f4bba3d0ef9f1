// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/keystoretest"
	"github.com/idempotency-dev/operator/internal/retention"
)

// stopped is the operator's clock, which a test moves together with the server's.
type stopped struct{ now time.Time }

func (s *stopped) Now() time.Time                                  { return s.now }
func (s *stopped) Wait(ctx context.Context, _ time.Duration) error { return ctx.Err() }

// TestStoreUnderRetention: day by day, on what retention makes and drops. What is honoured stays, in flight beyond its window, taken over and completed on
// later days; what is not goes with its partition.
func TestStoreUnderRetention(t *testing.T) {
	d := newDatabase(t)
	store := d.open(t, d.sidecar())
	clock := &stopped{}
	maintain := func(now time.Time) retention.Report {
		t.Helper()
		d.setClock(now)
		clock.now = now
		var report retention.Report
		for range 3 { // a partition is sealed, retired, detached and dropped
			var err error
			if report, err = retention.Run(t.Context(), d.admin.Catalogue(keyspaceName), retention.Settings{CreateAhead: 2}, clock); err != nil {
				t.Fatal(err)
			}
		}
		return report
	}
	day := func(n int) time.Time { return keystoretest.Start().AddDate(0, 0, n) }
	holder := keystore.NewHolder()
	request := func(key string) keystore.Reservation {
		return keystore.Reservation{Client: "c", Key: key, Token: keystore.NewToken(), Holder: holder, Lease: time.Hour, Window: 25 * time.Hour}
	}
	want := func(r keystore.Reservation, outcome keystore.Outcome) {
		t.Helper()
		if got, err := store.Reserve(t.Context(), r); err != nil || got.Outcome != outcome {
			t.Fatalf("reserve %s: %v, %v, want %v", r.Key, got.Outcome, err, outcome)
		}
	}
	own := func(r keystore.Reservation) keystore.Ownership {
		return keystore.Ownership{Client: r.Client, Key: r.Key, Token: r.Token}
	}
	maintain(day(0))
	long, short, lost := request("long"), request("short"), request("lost")
	want(long, keystore.New)
	want(short, keystore.New)
	lost.Holder = keystore.NewHolder()
	want(lost, keystore.New)
	d.must(store.Complete(t.Context(), own(short), keystore.Answer{Status: 201}))
	d.must(store.KeepAlive(t.Context(), holder, 80*time.Hour))

	maintain(day(1))
	again := request("lost")
	again.TakeOver, again.Holder, again.Window = true, keystore.NewHolder(), 26*time.Hour
	want(again, keystore.TakenOver)
	want(request("short"), keystore.Completed)

	maintain(day(2)) // the answer's window is over; the others are still honoured, in a sealed partition
	want(request("long"), keystore.InFlight)
	want(request("lost"), keystore.Unknown)
	d.must(store.Complete(t.Context(), own(again), keystore.Answer{Status: 202}))
	want(request("short"), keystore.New)

	maintain(day(3))
	want(request("long"), keystore.InFlight)
	want(request("lost"), keystore.Completed)
	d.must(store.Complete(t.Context(), own(long), keystore.Answer{Status: 203}))

	maintain(day(4))
	want(request("long"), keystore.Completed)
	if report := maintain(day(6)); !report.Ready() {
		t.Errorf("not ready: %+v", report.Problems)
	}
	var left bool
	d.must(d.conn.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_class WHERE relname LIKE '%' || $1)", day(0).Format("_p20060102")).Scan(&left))
	if left {
		t.Error("the first day's partition is still there, though nothing in it is honoured")
	}
	want(request("long"), keystore.New)
	want(request("lost"), keystore.New)
}
