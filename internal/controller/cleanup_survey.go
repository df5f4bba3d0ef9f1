// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"maps"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/retention"
)

// surveyAge is how old a survey may be to tell that a keyspace needs nothing.
const surveyAge = time.Minute

// surveys keep the catalogues of stores with many keyspaces from being read once for each of them: most of the time none needs anything.
type surveys struct {
	clock clock.PassiveClock

	mu  sync.Mutex
	all map[*postgres.Admin]*survey
}

// survey is all keyspaces of one store as they were when the operator's clock showed read.
type survey struct {
	mu     sync.Mutex
	read   time.Time
	states map[string]retention.State
}

func newSurveys(clk clock.PassiveClock) *surveys {
	return &surveys{clock: clk, all: map[*postgres.Admin]*survey{}}
}

// find returns the state of a keyspace, and when it was read. False: it is not known, or the store does not say.
func (s *surveys) find(ctx context.Context, admin *postgres.Admin, keyspace string) (retention.State, time.Time, bool) {
	found := s.of(admin)
	found.mu.Lock()
	defer found.mu.Unlock()
	if s.clock.Since(found.read) > surveyAge {
		found.read = s.clock.Now()
		found.states, _ = admin.Survey(ctx) // the pass that follows says what is wrong
	}
	state, known := found.states[keyspace]
	return state, found.read, known
}

// of returns the survey of a store, and lets go those of stores that nobody has asked about for long.
func (s *surveys) of(admin *postgres.Admin) *survey {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.all, func(other *postgres.Admin, v *survey) bool {
		return other != admin && v.mu.TryLock() && v.idle(s.clock)
	})
	if s.all[admin] == nil {
		s.all[admin] = &survey{}
	}
	return s.all[admin]
}

// idle unlocks v and says whether it is of no use any more.
func (v *survey) idle(clk clock.PassiveClock) bool {
	defer v.mu.Unlock()
	return clk.Since(v.read) > time.Hour
}
