// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

const day = 24 * time.Hour

func testPartitionsAhead(t *testing.T) {
	ctx := t.Context()
	now, err := shared.database.now(ctx, "payments")
	must(t, err)
	days, err := shared.database.partitions(ctx, "payments")
	must(t, err)
	have := strings.Join(days, " ")
	for ahead := range 8 {
		if want := now.Add(time.Duration(ahead) * day).Format("20060102"); !strings.Contains(have, want) {
			t.Errorf("no partition for %s; there are %s", want, have)
		}
	}
	say("partitions: %s", have)
}

// testExpiredPartition ages a partition by its bounds and its rows, and lets requests run while the operator drops it.
func testExpiredPartition(t *testing.T) {
	ctx, c, db := t.Context(), shared.cluster, shared.database
	old, err := db.addExpiredPartition(ctx, "payments", 40)
	must(t, err)

	traffic, stop := context.WithCancel(ctx)
	defer stop()
	answers := make(chan error)
	var running sync.WaitGroup
	running.Go(func() { steadyTraffic(traffic, c, answers) })
	sent := 0
	take := func() {
		sent++
		if err := <-answers; err != nil {
			t.Errorf("while the partition was dropped: %v", err)
		}
	}
	take()
	// A change of the policy brings the cleanup controller to the keyspace at once.
	_, err = c.kubectl(ctx, "-n", shop, "patch", "idempotencypolicy", policy, "--type=merge", "-p", `{"spec":{"retention":{"createAhead":8}}}`)
	must(t, err)
	eventually(t, 60*time.Second, func() error {
		take()
		days, err := db.partitions(ctx, "payments")
		if err != nil {
			return err
		}
		if strings.Contains(strings.Join(days, " "), old) {
			return fmt.Errorf("the partition of %s is still there", old)
		}
		return nil
	})
	take()
	stop()
	running.Wait()
	must(t, db.absent(ctx, "payments", old))
	eventually(t, 30*time.Second, func() error { return c.condition(ctx, shop, policy, "PartitionsReady", "True", "") })
	say("the partition of %s was dropped while %d requests ran", old, sent)
}

// steadyTraffic sends payments with new keys, one after the other, until ctx ends, and hands on how each went.
func steadyTraffic(ctx context.Context, c *cluster, answers chan<- error) {
	for i := 0; ctx.Err() == nil; i++ {
		replies, err := sendFrom(ctx, c, request{Key: fmt.Sprintf("drop-%d", i), Client: "alice", Body: `{"amount":1,"currency":"EUR"}`, Times: 1})
		if err == nil && replies[0].Status != http.StatusCreated {
			err = fmt.Errorf("answer %d %q", replies[0].Status, replies[0].Body)
		}
		select {
		case answers <- err:
		case <-ctx.Done():
		}
	}
}

// testMidnight moves the database's clock: the first request falls on the last second of a day, the retry on the next day.
func testMidnight(t *testing.T) {
	ctx, db := t.Context(), shared.database
	now, err := db.now(ctx, "payments")
	must(t, err)
	midnight := now.Truncate(day).Add(day)
	must(t, db.shiftClock(ctx, "payments", midnight.Sub(now)-2*time.Minute))
	t.Cleanup(func() { must(t, db.shiftClock(context.WithoutCancel(ctx), "payments", 0)) })
	body := `{"amount":9,"currency":"EUR"}`
	before := send(t, request{Key: "midnight", Client: "alice", Body: body, Times: 1})[0]
	must(t, db.shiftClock(ctx, "payments", midnight.Sub(now)+time.Minute))
	after := send(t, request{Key: "midnight", Client: "alice", Body: body, Times: 1})[0]
	if before.Status != http.StatusCreated || after.Body != before.Body || after.Header.Get("Idempotent-Replayed") != "true" {
		t.Fatalf("before midnight %d %q, after %d %q", before.Status, before.Body, after.Status, after.Body)
	}
	if n := executions(t, "midnight"); n != 1 {
		t.Fatalf("executed %d times", n)
	}
	fresh := send(t, request{Key: "after-midnight", Client: "alice", Body: body, Times: 1})[0]
	if fresh.Status != http.StatusCreated {
		t.Fatalf("a new key after midnight: %d %q", fresh.Status, fresh.Body)
	}
	must(t, db.entryIn(ctx, "payments", "midnight", midnight.Add(-time.Second)))
	must(t, db.entryIn(ctx, "payments", "after-midnight", midnight.Add(time.Second)))
	say("across the database's midnight: replayed, executed once; the next key is in the next day's partition")
}

// testDrain deletes the pod while the app is at work: the answer arrives through the sidecar, is recorded, and is replayed by the next pod.
func testDrain(t *testing.T) {
	ctx, c := t.Context(), shared.cluster
	pods, err := c.pods(ctx, shop, "payments")
	must(t, err)
	slow := request{Key: "drain", Client: "alice", Body: `{"amount":4,"currency":"EUR","simulate":{"sleepMillis":8000}}`, Times: 1}
	type outcome struct {
		replies []reply
		err     error
	}
	done := make(chan outcome, 1)
	go func() {
		replies, err := sendFrom(ctx, c, slow)
		done <- outcome{replies, err}
	}()
	eventually(t, 30*time.Second, func() error {
		if executions(t, "drain") == 0 {
			return errors.New("the app is not at work yet")
		}
		return nil
	})
	_, err = c.kubectl(ctx, "-n", shop, "delete", "pod", pods[0].Name)
	must(t, err)
	first := <-done
	must(t, first.err)
	if first.replies[0].Status != http.StatusCreated {
		t.Fatalf("the request in flight got %d %q", first.replies[0].Status, first.replies[0].Body)
	}
	must(t, c.ready(ctx, shop, "payments"))
	again := send(t, slow)[0]
	if again.Body != first.replies[0].Body || again.Header.Get("Idempotent-Replayed") != "true" || executions(t, "drain") != 0 {
		t.Fatalf("the next pod answered %d %q after %q, and executed %d times", again.Status, again.Body, first.replies[0].Body, executions(t, "drain"))
	}
	say("pod %s was deleted with a request in flight: answered, recorded, and replayed by the next pod", pods[0].Name)
}

func testStoreOutage(t *testing.T) {
	ctx, c, db := t.Context(), shared.cluster, shared.database
	pods, err := c.pods(ctx, shop, "payments")
	must(t, err)
	db.pause()
	say("PostgreSQL stopped")
	var r reply
	eventually(t, 30*time.Second, func() error {
		r = send(t, request{Key: "outage", Client: "alice", Body: `{"amount":3,"currency":"EUR"}`, Times: 1})[0]
		if r.Status != http.StatusServiceUnavailable {
			return fmt.Errorf("answer while the store is away: %d %q", r.Status, r.Body)
		}
		return nil
	})
	wantProblem(t, r, http.StatusServiceUnavailable)
	if r.Header.Get("Retry-After") == "" {
		t.Errorf("the 503 has no Retry-After")
	}
	if n := executions(t, "outage"); n != 0 {
		t.Fatalf("executed %d times while the store was away", n)
	}
	eventually(t, 90*time.Second, func() error { return c.condition(ctx, shop, policy, "StoreHealthy", "False", "Unreachable") })
	eventually(t, 10*time.Second, func() error { return c.condition(ctx, shop, policy, "Ready", "False", "") })
	say("callers get 503, nothing executed; StoreHealthy is False/Unreachable")

	must(t, db.start(ctx))
	eventually(t, 60*time.Second, func() error { return c.condition(ctx, shop, policy, "StoreHealthy", "True", "") })
	eventually(t, 60*time.Second, func() error { return c.condition(ctx, shop, policy, "Ready", "True", "") })
	eventually(t, 30*time.Second, func() error {
		if r := send(t, request{Key: "outage", Client: "alice", Body: `{"amount":3,"currency":"EUR"}`, Times: 1})[0]; r.Status != http.StatusCreated {
			return fmt.Errorf("answer after the store is back: %d %q", r.Status, r.Body)
		}
		return nil
	})
	if n := executions(t, "outage"); n != 1 {
		t.Fatalf("executed %d times", n)
	}
	now, err := c.pods(ctx, shop, "payments")
	must(t, err)
	if now[0].Name != pods[0].Name || now[0].Status.InitContainerStatuses[0].RestartCount != 0 {
		t.Fatalf("it took a restart: pod %s, then %s with %d restarts of the sidecar", pods[0].Name, now[0].Name, now[0].Status.InitContainerStatuses[0].RestartCount)
	}
	say("PostgreSQL is back: healthy and serving, no restart")
}
