// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// parcel is a call of a given size.
func parcel(name string, size int) *completeCall {
	return &completeCall{Ownership: keystore.Ownership{Key: name}, body: make([]byte, size-len(name))}
}

// depot is lanes whose batches are recorded.
type depot struct {
	lanes
	sent [][]string
}

func newDepot(free int) *depot {
	d := &depot{}
	d.lanes = lanes{free: free, send: func(batch []*seat) {
		var names []string
		for _, s := range batch {
			names = append(names, s.call.(*completeCall).Key)
			s.settled = true
		}
		d.sent = append(d.sent, names)
	}}
	return d
}

// wait lets calls of the given sizes wait for a lane, in order, and returns how many of them have led when all are done.
func (d *depot) wait(ctx context.Context, sizes ...int) (led func() int) {
	count := 0
	for n, size := range sizes {
		go func() {
			s, err := d.enter(ctx, parcel(strconv.Itoa(n), size))
			if err == nil && s.leads {
				count++
				d.leave()
			}
		}()
		synctest.Wait()
	}
	return func() int { synctest.Wait(); return count }
}

func TestWhatWaitsGoesTogether(t *testing.T) {
	sizes := func(n, size int) []int {
		all := make([]int, n)
		for i := range all {
			all[i] = size
		}
		return all
	}
	for _, row := range []struct {
		reason string
		sizes  []int
		sent   []int
		led    int
	}{
		{"nobody waits", nil, nil, 0},
		{"one has the lane for itself", sizes(1, 10), nil, 1},
		{"two share it", sizes(2, 10), []int{2}, 0},
		{"as many as a batch takes", sizes(batchCalls, 10), []int{batchCalls}, 0},
		{"one more goes behind", sizes(batchCalls+1, 10), []int{batchCalls}, 1},
		{"as many bytes as a batch takes", sizes(2, batchBytes/2), []int{2}, 0},
		{"one byte more goes behind", []int{batchBytes / 2, batchBytes/2 + 1}, nil, 2},
		{"what is larger than a batch goes alone", []int{batchBytes + 1, 10, 10}, []int{2}, 1},
	} {
		t.Run(row.reason, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDepot(1)
				first, err := d.enter(t.Context(), parcel("first", 10))
				if err != nil || !first.leads {
					t.Fatalf("first call: %v, leads %t", err, first.leads)
				}
				led := d.wait(t.Context(), row.sizes...)
				if len(d.sent) > 0 || led() > 0 {
					t.Fatal("somebody went though no lane was free")
				}
				d.leave()
				if got := led(); got != row.led {
					t.Errorf("%d had the lane for themselves, want %d", got, row.led)
				}
				var sent []int
				for _, batch := range d.sent {
					sent = append(sent, len(batch))
				}
				if diff := cmp.Diff(row.sent, sent); diff != "" {
					t.Errorf("batches: -want +got\n%s", diff)
				}
				if d.free != 1 {
					t.Errorf("%d lanes are free in the end, want 1", d.free)
				}
			})
		})
	}
}

// TestNobodyWaitsForALaneThatIsFree: there are as many single calls under way as lanes.
func TestNobodyWaitsForALaneThatIsFree(t *testing.T) {
	d := newDepot(2)
	for n := range 2 {
		if s, err := d.enter(t.Context(), parcel(strconv.Itoa(n), 10)); err != nil || !s.leads {
			t.Fatalf("call %d: %v, leads %t", n, err, s.leads)
		}
	}
}

// TestWhoLeftIsGivenNoLane: a caller whose time is over does not wait any more, and what it would have sent is not kept.
func TestWhoLeftIsGivenNoLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(1)
		if _, err := d.enter(t.Context(), parcel("first", 10)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := d.enter(ctx, parcel("impatient", 10))
			failed <- err
		}()
		synctest.Wait()
		cancel(errors.New("time is over"))
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("error = %v, want context.Canceled", err)
		}
		if n := len(d.waiting); n != 0 {
			t.Errorf("%d calls wait, though nobody waits for them", n)
		}
		d.leave()
		synctest.Wait()
		if d.free != 1 {
			t.Errorf("%d lanes are free, want 1", d.free)
		}
	})
}

// TestLaneOfWhoLeftIsNotLost: a caller that leaves just when it is given the lane passes it on.
func TestLaneOfWhoLeftIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDepot(0)
		given := &seat{call: parcel("late", 10), told: make(chan struct{}), leads: true}
		close(given.told)
		d.abandon(given)
		synctest.Wait()
		if d.free != 1 {
			t.Errorf("%d lanes are free, want 1", d.free)
		}
	})
}

// TestNothingIsKeptOfWhatHasGone: lanes do not hold on to calls, which may be large.
func TestNothingIsKeptOfWhatHasGone(t *testing.T) {
	d := newDepot(0)
	for n := range batchCalls + 2 {
		d.waiting = append(d.waiting, &seat{call: parcel(strconv.Itoa(n), 10)})
	}
	room := d.waiting[:cap(d.waiting)]
	d.next()
	for n, s := range room[2:] {
		if s != nil {
			t.Fatalf("place %d still holds a call, though two wait", n+2)
		}
	}
}
