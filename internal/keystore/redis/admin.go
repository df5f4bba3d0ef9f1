// SPDX-License-Identifier: Apache-2.0

package redis

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// Admin is the operator's side of a store. It is safe for concurrent use, also by several programs.
// Errors wrap the sentinels of keystore and hold no part of the DSN.
type Admin struct {
	*servers
	ensure script
}

// OpenAdmin prepares administration. It does not wait for the server, and fails only with keystore.ErrDSNInvalid.
func OpenAdmin(dsn string) (*Admin, error) {
	servers, err := openServers(dsn, defaultTimeout, 0, nil)
	if err != nil {
		return nil, err
	}
	return &Admin{servers: servers, ensure: newScript("epoch", "ensure")}, nil
}

// Wanted is a keyspace as it should be.
type Wanted struct {
	Name string
	// Claim names the one who may use it; empty: whoever names it shares it.
	Claim string
	// ID that an earlier EnsureKeyspace returned; empty: none did. If the store does not know it any more, the store has lost its data.
	ID string
	// Window is the longest for which an entry is honoured. After a loss a key that is absent is Unknown for so long.
	Window time.Duration
}

// Found is a keyspace as it is.
type Found struct {
	ID string
	// Lost is how many of its buckets were found to have lost entries, just now; of Buckets.
	Lost, Buckets int
	// Doubt is until when, by the server, a key that is absent is Unknown; zero: it is New.
	Doubt time.Time
}

// EnsureKeyspace makes the keyspace, or mends what a loss has left of it. It fails with keystore.ErrKeyspaceTaken when it exists with another claim.
//
// A bucket without an epoch is new if no bucket has a finished one and nobody remembers the keyspace; else its entries are lost. The epochs of a new
// keyspace are finished when all are there, so that an interruption does not look like a loss.
func (a *Admin) EnsureKeyspace(ctx context.Context, w Wanted) (Found, error) {
	keys := newKeyspace(w.Name)
	states, err := a.epochs(ctx, keys)
	if err != nil {
		return Found{}, unavailable(ctx, "make keyspace "+w.Name, err)
	}
	found := Found{ID: w.ID, Buckets: buckets}
	missing := "making"
	if w.ID != "" {
		missing = "lost"
	}
	for _, e := range states {
		if e.id != "" && found.ID == "" {
			found.ID = e.id
		}
		if e.id != "" && !e.making {
			missing = "lost"
		}
	}
	if found.ID == "" {
		found.ID = keystore.NewToken().String()
	}
	runs, err := a.runs(ctx)
	if err != nil {
		return Found{}, unavailable(ctx, "make keyspace "+w.Name, err)
	}
	args := append([]any{found.ID, w.Claim, w.Window.Microseconds(), missing}, runs...)
	replies := a.each(keys, func(b bucket) reply {
		r, _ := a.call(ctx, command{script: a.ensure, keys: []string{b.epoch()}, args: args})
		return r
	})
	for _, r := range replies {
		if r.err != nil {
			return Found{}, unavailable(ctx, "make keyspace "+w.Name, r.err)
		}
		row, _ := r.value.([]any)
		if len(row) != 2 {
			return Found{}, unavailable(ctx, "make keyspace "+w.Name, errReply)
		}
		switch row[0] {
		case "taken":
			return Found{}, fmt.Errorf("make keyspace %s: %w", w.Name, keystore.ErrKeyspaceTaken)
		case "lost":
			found.Lost++
		}
		if doubt, _ := row[1].(string); doubt != "0" {
			n, _ := strconv.ParseInt(doubt, 10, 64) // the script's own number
			if until := time.UnixMicro(n); until.After(found.Doubt) {
				found.Doubt = until
			}
		}
	}
	for _, r := range a.each(keys, func(b bucket) reply { return reply{err: a.client().HDel(ctx, b.epoch(), "making").Err()} }) {
		if r.err != nil {
			return Found{}, unavailable(ctx, "make keyspace "+w.Name, r.err)
		}
	}
	return found, nil
}

// client is for single commands.
func (a *Admin) client() redis.UniversalClient {
	if a.cluster != nil {
		return a.cluster
	}
	return a.single
}

// each does something in every bucket at once.
func (a *Admin) each(keys *keyspace, do func(bucket) reply) (replies [buckets]reply) {
	var group sync.WaitGroup
	for i, b := range keys {
		group.Go(func() { replies[i] = do(b) })
	}
	group.Wait()
	return replies
}

// epochState is what the epoch of a bucket says; the zero value when there is none.
type epochState struct {
	id     string
	making bool
}

func (a *Admin) epochs(ctx context.Context, keys *keyspace) (states [buckets]epochState, err error) {
	replies := a.each(keys, func(b bucket) reply {
		values, err := a.client().HMGet(ctx, b.epoch(), "id", "making").Result()
		return reply{value: values, err: err}
	})
	for i, r := range replies {
		if r.err != nil {
			return states, r.err
		}
		values, _ := r.value.([]any)
		if len(values) == 2 {
			states[i].id, _ = values[0].(string)
			states[i].making = values[1] != nil
		}
	}
	return states, nil
}
