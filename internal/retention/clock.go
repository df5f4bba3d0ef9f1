// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"context"
	"time"
)

// SystemClock is the machine's clock, for programs that have no other.
type SystemClock struct{}

// Now is the machine's time.
func (SystemClock) Now() time.Time { return time.Now() }

// Wait returns after d, or earlier with the error of a context that ended.
func (SystemClock) Wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
