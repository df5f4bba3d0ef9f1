// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"math"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// Pool is the store's connections.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }

// Ferry makes every call go in a batch, be it the only one in it, until stop is called: no lane is ever free for one call alone.
func (s *Store) Ferry() (stop func()) {
	s.few = 0
	s.lanes.mu.Lock()
	s.lanes.free = math.MinInt / 2
	s.lanes.mu.Unlock()
	return pump(&s.lanes, func(l *lanes) bool { return len(l.waiting) > 0 })
}

// Gather makes the next n calls go in one batch: no lane is free, and nobody goes before all of them wait. stop frees the lanes again.
func (s *Store) Gather(n int) (stop func()) {
	s.lanes.mu.Lock()
	free := s.lanes.free
	s.lanes.free = math.MinInt / 2
	s.lanes.mu.Unlock()
	gathered := false
	end := pump(&s.lanes, func(l *lanes) bool {
		gathered = gathered || len(l.waiting) >= n
		return gathered && len(l.waiting) > 0
	})
	return func() {
		end()
		s.lanes.mu.Lock()
		s.lanes.free = free
		s.lanes.mu.Unlock()
	}
}

// pump carries those who wait whenever full says so.
func pump(l *lanes, full func(*lanes) bool) (stop func()) {
	done := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(100 * time.Microsecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			l.mu.Lock()
			var batch []*seat
			if full(l) {
				batch = l.next()
			}
			l.mu.Unlock()
			if len(batch) > 0 {
				group.Go(func() { l.carry(batch) })
			}
		}
	})
	return func() {
		close(done)
		group.Wait()
	}
}

// SendForNobody sends the reservations as a batch whose callers have all given up.
func (s *Store) SendForNobody(reservations ...keystore.Reservation) {
	left := make(chan struct{})
	close(left)
	var batch []*seat
	for _, r := range reservations {
		batch = append(batch, &seat{call: &reserveCall{Reservation: r}, left: left})
	}
	s.send(batch)
}

// Latest is the version of the schema.
func Latest() int32 { return latest() }

// Statements are all queries of the store and of its administration, by name.
func Statements(schema, keyspace string) map[string]string {
	files, err := queries.ReadDir("queries")
	if err != nil {
		panic(err)
	}
	all := map[string]string{}
	for _, f := range files {
		name := strings.TrimSuffix(path.Base(f.Name()), ".sql")
		if !strings.HasPrefix(name, "catalogue_") {
			all[name] = inKeyspace(schema, keyspace).query(name)
		}
	}
	return all
}
