// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"sync/atomic"

	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// generation is one configuration with the store that it came with. A request keeps the one that it began with.
type generation struct {
	config   proxyconfig.Config
	router   *router
	identity *identity
	link     *link
	users    atomic.Int64
}

// newGeneration is in use once, by whoever made it, and takes over one use of l.
func newGeneration(config proxyconfig.Config, l *link, id *identity) *generation {
	g := &generation{config: config, router: newRouter(config.Routes), identity: id, link: l}
	g.users.Store(1)
	return g
}

// enter is the beginning of a use; false when the last one has ended already.
func (g *generation) enter() bool {
	for {
		n := g.users.Load()
		if n == 0 {
			return false
		}
		if g.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (g *generation) leave() {
	if g.users.Add(-1) == 0 {
		g.link.leave()
	}
}
