// SPDX-License-Identifier: Apache-2.0

package proxy

import "sync/atomic"

// budget is an amount that many share and none waits for.
type budget struct {
	limit int64
	used  atomic.Int64
}

// take takes n, or nothing and reports false.
func (b *budget) take(n int64) bool {
	if b.used.Add(n) <= b.limit {
		return true
	}
	b.used.Add(-n)
	return false
}

func (b *budget) give(n int64) { b.used.Add(-n) }
