// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/policy"
)

const (
	// probeTimeout bounds everything that one pass asks of a store, and askTimeout one probe.
	probeTimeout = 10 * time.Second
	askTimeout   = 4 * time.Second
	// probeShared is how long the result of a probe serves every policy on the same store, and unhealthyShared how long a bad one does.
	probeShared     = 5 * time.Second
	unhealthyShared = time.Second
	// sidecarChecked is how long it is believed that the sidecar's connection string works, once that was tried.
	sidecarChecked = 5 * time.Minute
)

// Stores keeps one pool of administrative connections for each store, shared by all policies that use it, and follows rotated Secrets.
// It is safe for concurrent use.
type Stores struct {
	secrets client.Reader
	clock   clock.Clock

	mu      sync.Mutex
	open    map[storeID]*store
	inUse   map[types.NamespacedName]storeID
	closing sync.WaitGroup
}

// storeID tells stores apart without keeping a connection string in memory once more.
type storeID struct {
	dsn    [sha256.Size]byte
	schema string
}

// store is one pool, with what is known about the server behind it.
type store struct {
	admin *postgres.Admin

	mu       sync.Mutex // held while the server is asked
	prepared map[preparation]bool

	last     atomic.Pointer[answer] // nil before the first probe
	sidecars sync.Map               // of when a sidecar was last seen to work, by sidecar
}

// answer is what a probe came to, and when.
type answer struct {
	health keystore.Health
	err    error
	at     time.Time
}

// sidecar is a way in for sidecars.
type sidecar struct {
	dsn      [sha256.Size]byte
	keyspace string
}

// preparation is what a policy needs to have been done in the database, once.
type preparation struct {
	keyspace, claim, role string
	// consumers with their windows, as text.
	consumers string
}

// NewStores returns Stores without connections. secrets reads from the API server, by name, without a cache.
func NewStores(secrets client.Reader, clock clock.Clock) *Stores {
	return &Stores{secrets: secrets, clock: clock, open: map[storeID]*store{}, inUse: map[types.NamespacedName]storeID{}}
}

// Admin returns the administrative connections to the store of p. The caller does not close them; they may be closed under its hands when the
// Secret changes, and then the next call returns others.
// It fails with a *SecretError, an error that wraps keystore.ErrDSNInvalid, and with what the API server says.
func (s *Stores) Admin(ctx context.Context, p *v1alpha1.IdempotencyPolicy) (*postgres.Admin, error) {
	found, err := s.find(ctx, p)
	if err != nil {
		return nil, err
	}
	return found.admin, nil
}

// find returns the store of p.
func (s *Stores) find(ctx context.Context, p *v1alpha1.IdempotencyPolicy) (*store, error) {
	p = p.DeepCopy()
	policy.Default(p)
	if p.Spec.Store.Postgres == nil {
		return nil, errors.New("policy has no PostgreSQL store")
	}
	dsns, err := s.DSNs(ctx, p.Namespace, policy.AdminDSN(p))
	if err != nil {
		return nil, err
	}
	return s.of(ctx, p, dsns[0])
}

// of returns the store that p, with its defaults applied, has behind dsn.
func (s *Stores) of(ctx context.Context, p *v1alpha1.IdempotencyPolicy, dsn string) (*store, error) {
	id := storeID{dsn: sha256.Sum256([]byte(dsn)), schema: p.Spec.Store.Postgres.Schema}
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.open[id]
	if found == nil {
		admin, err := postgres.OpenAdmin(ctx, dsn, id.schema)
		if err != nil {
			return nil, err
		}
		found = &store{admin: admin, prepared: map[preparation]bool{}}
		s.open[id] = found
	}
	s.use(client.ObjectKeyFromObject(p), &id)
	return found, nil
}

// Forget says that a policy is gone.
func (s *Stores) Forget(p types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.use(p, nil)
}

// use notes which store a policy uses, and closes the one that it was the last to use.
func (s *Stores) use(p types.NamespacedName, id *storeID) {
	before, had := s.inUse[p]
	switch {
	case id != nil:
		s.inUse[p] = *id
	default:
		delete(s.inUse, p)
	}
	if !had || (id != nil && before == *id) {
		return
	}
	for _, other := range s.inUse {
		if other == before {
			return
		}
	}
	unused := s.open[before]
	delete(s.open, before)
	// Closing waits for connections that are in use.
	s.closing.Go(unused.admin.Close)
}

// Close closes every connection, and returns when it is done.
func (s *Stores) Close() {
	s.mu.Lock()
	for id, open := range s.open {
		delete(s.open, id)
		s.closing.Go(open.admin.Close)
	}
	clear(s.inUse)
	s.mu.Unlock()
	s.closing.Wait()
}

// probe asks the server how it is, unless somebody has just done so. It does not wait for somebody who is asking while an earlier answer is
// known: a server that is silent must not hold up everybody's passes.
func (s *store) probe(ctx context.Context, clock clock.Clock) (keystore.Health, error) {
	if !s.mu.TryLock() {
		if last := s.last.Load(); last != nil {
			return last.health, last.err
		}
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	if last := s.last.Load(); last != nil && clock.Since(last.at) < last.shared() {
		return last.health, last.err
	}
	health, err := s.ask(ctx, clock)
	if err != nil && ctx.Err() != nil && !errors.Is(err, keystore.ErrUnreachable) {
		return health, err
	}
	s.last.Store(&answer{health: health, err: err, at: clock.Now()})
	if err != nil {
		// What comes back may be another database, restored or made anew, and settings that were mended hold for new connections only.
		clear(s.prepared)
		s.admin.Reset()
	}
	return health, err
}

// shared is how long the answer serves others.
func (a *answer) shared() time.Duration {
	if a.err != nil {
		return unhealthyShared
	}
	return probeShared
}

// ask probes, and brings the schema up to date first where that is what is wrong.
func (s *store) ask(ctx context.Context, clock clock.Clock) (keystore.Health, error) {
	probe := func() (keystore.Health, error) {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		return s.admin.Probe(ctx, clock)
	}
	health, err := probe()
	if last := s.last.Load(); errors.Is(err, keystore.ErrUnreachable) && (last == nil || last.err == nil) {
		// A connection that an earlier probe left in the pool says nothing about the server: it may have restarted since.
		s.admin.Reset()
		health, err = probe()
	}
	if !errors.Is(err, keystore.ErrSchemaOutdated) {
		return health, err
	}
	if err := s.admin.Migrate(ctx); err != nil {
		return health, err
	}
	// A schema that had to be made may stand where another one was lost, with all its keyspaces.
	clear(s.prepared)
	s.sidecars.Clear()
	return probe()
}

// prepare does what a policy needs in the database, if that has not been done since the store was last unhealthy.
func (s *store) prepare(ctx context.Context, need preparation, consumers map[string]time.Duration) error {
	need.consumers = fmt.Sprint(consumers)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.prepared[need] {
		return nil
	}
	// What was declared before holds no more.
	maps.DeleteFunc(s.prepared, func(done preparation, _ bool) bool {
		return done.keyspace == need.keyspace && done.consumers != need.consumers
	})
	if err := s.admin.EnsureKeyspace(ctx, need.keyspace, need.claim); err != nil {
		return err
	}
	if len(consumers) > 0 {
		if err := s.admin.EnsureConsumers(ctx, need.keyspace, need.claim, consumers); err != nil {
			return err
		}
	}
	if err := s.admin.Grant(ctx, need.role, need.keyspace); err != nil {
		return err
	}
	s.prepared[need] = true
	return nil
}

// drop drops a keyspace and that of its consumers, and forgets that it was ever prepared: a policy of the same name may come.
func (s *store) drop(ctx context.Context, keyspace string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.prepared, func(done preparation, _ bool) bool { return done.keyspace == keyspace })
	s.sidecars.Range(func(id, _ any) bool {
		if id.(sidecar).keyspace == keyspace {
			s.sidecars.Delete(id)
		}
		return true
	})
	if err := s.admin.DropKeyspace(ctx, postgres.ConsumersOf(keyspace)); err != nil {
		return err
	}
	return s.admin.DropKeyspace(ctx, keyspace)
}

// try does what a sidecar does when it starts, with its connection string, unless that was done a short while ago.
func (s *store) try(ctx context.Context, clock clock.Clock, config postgres.Config) error {
	id := sidecar{dsn: sha256.Sum256([]byte(config.DSN)), keyspace: config.Keyspace}
	if last, ok := s.sidecars.Load(id); ok && clock.Since(last.(time.Time)) < sidecarChecked {
		return nil
	}
	s.sidecars.Delete(id)
	opened, err := postgres.Open(ctx, config)
	if err != nil {
		return err
	}
	defer opened.Close()
	if err := opened.Check(ctx); err != nil {
		return err
	}
	s.sidecars.Store(id, clock.Now())
	return nil
}
