// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"sync"
	"sync/atomic"
)

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

const chunkBytes = 32 << 10

// chunks are buffers for one part of a message, to be used again.
type chunks struct{ pool sync.Pool }

func (c *chunks) get() *[chunkBytes]byte {
	if chunk, ok := c.pool.Get().(*[chunkBytes]byte); ok {
		return chunk
	}
	return new([chunkBytes]byte)
}

func (c *chunks) put(chunk *[chunkBytes]byte) { c.pool.Put(chunk) }
