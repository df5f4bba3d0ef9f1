// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestChaos: two proxies are killed and come back, the way to the database is shut and opened again, and the app fails now and then. No key has two
// effects, and no client sees two answers.
func TestChaos(t *testing.T) {
	var mu sync.Mutex
	effects, answers := map[string]int{}, map[string]map[string]bool{}
	var calls atomic.Int64
	w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		if calls.Add(1)%5 == 0 {
			rw.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		mu.Lock()
		effects[r.Header.Get("Idempotency-Key")]++
		n := len(effects)
		mu.Unlock()
		rw.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(rw).Encode(n)
	})
	door := newDoor(t, w.dsn)
	must(t, os.WriteFile(filepath.Join(w.dir, "dsn"), []byte(door.dsn), 0o600))
	var proxies [2]atomic.Pointer[instance]
	for i := range proxies {
		proxies[i].Store(w.proxy(fmt.Sprint("spool", i)))
	}
	over := make(chan struct{})
	var clients sync.WaitGroup
	for c := range 6 {
		clients.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-over:
					return
				default:
				}
				key := fmt.Sprint("k", i/4) // the clients go along the keys together, each key a few times
				got := proxies[(c+i)%2].Load().post(key, `{}`)
				if got.err != nil || got.status != http.StatusCreated {
					continue
				}
				mu.Lock()
				if answers[key] == nil {
					answers[key] = map[string]bool{}
				}
				answers[key][got.body] = true
				mu.Unlock()
			}
		})
	}
	pause := func() { <-time.After(700 * time.Millisecond) } // long enough for requests to be in every stage
	for round := range 4 {
		pause()
		victim := &proxies[round%2]
		must(t, victim.Load().cmd.Process.Kill())
		_ = victim.Load().cmd.Wait()
		pause()
		victim.Store(w.proxy(fmt.Sprint("spool", round%2)))
		door.shut()
		pause()
		door.open()
	}
	pause()
	close(over)
	clients.Wait()
	checkLedger(t, effects, answers)
}

func checkLedger(t *testing.T, effects map[string]int, answers map[string]map[string]bool) {
	t.Helper()
	for key, n := range effects {
		if n > 1 {
			t.Errorf("%s had %d effects", key, n)
		}
	}
	for key, bodies := range answers {
		if len(bodies) != 1 || effects[key] != 1 {
			t.Errorf("%s was answered %v, with %d effects", key, bodies, effects[key])
		}
	}
	t.Logf("%d keys had an effect, %d were answered", len(effects), len(answers))
	if len(answers) < 10 {
		t.Errorf("only %d keys were answered", len(answers))
	}
}
