// SPDX-License-Identifier: Apache-2.0

package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/redis"
	"github.com/idempotency-dev/operator/internal/localredis"
	"github.com/idempotency-dev/operator/internal/localredis/redistest"
)

func dsnOf(s *localredis.Server) string { return "redis://" + s.Addr() }

func request(key string) keystore.Reservation {
	return keystore.Reservation{
		Client: "client", Key: key, Token: keystore.NewToken(), Holder: keystore.Holder{1}, Lease: 10 * time.Second, Window: time.Hour, Route: "route",
	}
}

func owner(r keystore.Reservation) keystore.Ownership {
	return keystore.Ownership{Client: r.Client, Key: r.Key, Token: r.Token}
}

func created() keystore.Answer {
	return keystore.Answer{Status: http.StatusCreated, Body: []byte("it")}
}

func expect(t *testing.T, s keystore.Store, r keystore.Reservation, want keystore.Outcome) {
	t.Helper()
	d, err := s.Reserve(t.Context(), r)
	must(t, err)
	if d.Outcome != want {
		t.Fatalf("reserve %s: outcome %d, want %d", r.Key, d.Outcome, want)
	}
}

func refuses(t *testing.T, err error, causes ...error) {
	t.Helper()
	for _, cause := range causes {
		if !errors.Is(err, cause) {
			t.Fatalf("error = %v, want %v", err, cause)
		}
	}
	for _, secret := range []string{"wrong", "secret", "127.0.0.1"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("error tells %q: %v", secret, err)
		}
	}
}

func do(t *testing.T, s *localredis.Server, args ...any) any {
	t.Helper()
	var out any
	must(t, s.Do(t.Context(), func(r *goredis.Client) (err error) {
		out, err = r.Do(t.Context(), args...).Result()
		return err
	}))
	return out
}

// until repeats try until it succeeds, for half a minute.
func until(t *testing.T, try func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
}

// TestScriptsFlushed: a server that has forgotten the scripts is told again.
func TestScriptsFlushed(t *testing.T) {
	server := redistest.Start(t, localredis.Options{})
	ensure(t, dsnOf(server), "")
	s := open(t, redis.Config{DSN: dsnOf(server)})
	r := request("key")
	expect(t, s, r, keystore.New)
	do(t, server, "SCRIPT", "FLUSH")
	must(t, s.Complete(t.Context(), owner(r), created()))
	do(t, server, "SCRIPT", "FLUSH")
	expect(t, s, request("key"), keystore.Completed)
	do(t, server, "SCRIPT", "FLUSH")
	must(t, s.KeepAlive(t.Context(), r.Holder, r.Lease))
	must(t, s.Check(t.Context()))
}

// TestNoKeyWithoutExpiry: in whatever state, and never before what is written in it says so.
func TestNoKeyWithoutExpiry(t *testing.T) {
	server := redistest.Start(t, localredis.Options{})
	ensure(t, dsnOf(server), "")
	s := open(t, redis.Config{DSN: dsnOf(server)})
	for i, end := range []func(keystore.Reservation) error{
		func(keystore.Reservation) error { return nil },
		func(r keystore.Reservation) error { return s.Complete(t.Context(), owner(r), created()) },
		func(r keystore.Reservation) error { return s.Release(t.Context(), owner(r)) },
		func(r keystore.Reservation) error { return s.MarkUnknown(t.Context(), owner(r)) },
		func(r keystore.Reservation) error {
			must(t, s.MarkUnknown(t.Context(), owner(r)))
			again := request(r.Key)
			again.TakeOver = true
			expect(t, s, again, keystore.TakenOver)
			return s.Release(t.Context(), owner(again))
		},
	} {
		r := request(fmt.Sprint("key ", i))
		expect(t, s, r, keystore.New)
		must(t, end(r))
	}
	keys, _ := do(t, server, "KEYS", "*").([]any)
	if len(keys) < 60+60+4 { // epochs, leases, entries
		t.Errorf("%d keys", len(keys))
	}
	for _, key := range keys {
		if ttl, _ := do(t, server, "PTTL", key).(int64); ttl <= 0 {
			t.Errorf("key %v has a time to live of %d", key, ttl)
		}
		if !strings.HasPrefix(key.(string), "idempotency:") {
			t.Errorf("key %v", key)
		}
	}
	for key, want := range map[string]time.Duration{"key 0": 31*24*time.Hour + time.Hour, "key 1": time.Hour, "key 3": time.Hour, "key 4": time.Hour} {
		_, _, entry := redis.SlotOf(keyspaceName, "client", key)
		ttl, _ := do(t, server, "PTTL", entry).(int64)
		if got := time.Duration(ttl) * time.Millisecond; got > want+time.Second || got < want-time.Minute {
			t.Errorf("%s lives for %s, want about %s", key, got, want)
		}
	}
}

// TestServerPaused: a server that takes its time delays calls, and one that takes too long may have done them all the same.
func TestServerPaused(t *testing.T) {
	server := redistest.Start(t, localredis.Options{})
	ensure(t, dsnOf(server), "")
	patient, hasty := open(t, redis.Config{DSN: dsnOf(server)}), open(t, redis.Config{DSN: dsnOf(server), Timeout: 200 * time.Millisecond})
	must(t, hasty.Check(t.Context()))
	do(t, server, "CLIENT", "PAUSE", 1000)
	r := request("key")
	_, err := hasty.Reserve(t.Context(), r)
	refuses(t, err, keystore.ErrUnavailable, keystore.ErrUnreachable)
	expect(t, patient, r, keystore.New) // by its token: this call's own, or the one whose answer nobody waited for
	expect(t, patient, request("key"), keystore.InFlight)
	must(t, patient.Release(t.Context(), owner(r)))
}

// TestMemoryFull: nothing is begun, and nothing that is there is lost.
func TestMemoryFull(t *testing.T) {
	server := redistest.Start(t, localredis.Options{})
	ensure(t, dsnOf(server), "")
	s := open(t, redis.Config{DSN: dsnOf(server)})
	held, done := request("held"), request("done")
	expect(t, s, held, keystore.New)
	expect(t, s, done, keystore.New)
	must(t, s.Complete(t.Context(), owner(done), created()))
	do(t, server, "CONFIG", "SET", "maxmemory", "1")
	_, err := s.Reserve(t.Context(), request("new"))
	refuses(t, err, keystore.ErrUnavailable)
	refuses(t, s.Complete(t.Context(), owner(held), created()), keystore.ErrUnavailable)
	refuses(t, s.Check(t.Context()), keystore.ErrUnavailable)
	expect(t, s, request("done"), keystore.Completed)
	do(t, server, "CONFIG", "SET", "maxmemory", "0")
	expect(t, s, request("new"), keystore.New)
	must(t, s.Complete(t.Context(), owner(held), created()))
}

// TestRights: the user of docs/spec/keystore-redis.md may do all that a sidecar does, and what others lack is named.
func TestRights(t *testing.T) {
	server := redistest.Start(t, localredis.Options{})
	do(t, server, "ACL", "SETUSER", "payments", "on", ">secret", "resetkeys", "resetchannels", "~idempotency:*", "-@all",
		"+evalsha", "+script|load", "+hget", "+hmget", "+hset", "+hsetnx", "+hexists", "+get", "+set", "+del", "+pexpireat", "+time", "+info",
		"+wait", "+ping", "+cluster|slots", "+cluster|shards", "+asking", "+readonly", "+command")
	do(t, server, "ACL", "SETUSER", "narrow", "on", ">secret", "resetkeys", "~other:*", "+@all")
	ensure(t, dsnOf(server), "")
	as := func(user string) *redis.Store {
		return open(t, redis.Config{DSN: "redis://" + user + "@" + server.Addr()})
	}

	s := as("payments:secret")
	must(t, s.Check(t.Context()))
	must(t, s.KeepAlive(t.Context(), keystore.Holder{1}, time.Second))
	r := request("key")
	expect(t, s, r, keystore.New)
	must(t, s.MarkUnknown(t.Context(), owner(r)))
	must(t, s.Complete(t.Context(), owner(r), created()))
	expect(t, s, request("key"), keystore.Completed)
	other := request("other")
	expect(t, s, other, keystore.New)
	must(t, s.Release(t.Context(), owner(other)))
	must(t, s.Retire(t.Context(), r.Holder))

	refuses(t, as("payments:wrong").Check(t.Context()), keystore.ErrUnavailable, keystore.ErrAuthFailed)
	refuses(t, as("narrow:secret").Check(t.Context()), keystore.ErrUnavailable, keystore.ErrPermissionDenied)
	do(t, server, "ACL", "SETUSER", "payments", "-hset")
	_, err := s.Reserve(t.Context(), request("third"))
	refuses(t, err, keystore.ErrUnavailable, keystore.ErrPermissionDenied)
}

// TestRestarts: what a server that starts anew may have lost decides whether it is trusted.
func TestRestarts(t *testing.T) {
	t.Run("with its append-only file", func(t *testing.T) {
		server := redistest.Start(t, localredis.Options{})
		ensure(t, dsnOf(server), "")
		s := open(t, redis.Config{DSN: dsnOf(server)})
		held, done := request("held"), request("done")
		expect(t, s, held, keystore.New)
		expect(t, s, done, keystore.New)
		must(t, s.Complete(t.Context(), owner(done), created()))
		server.Kill()
		must(t, server.Restart(t.Context(), nil))
		expect(t, s, request("done"), keystore.Completed)
		expect(t, s, request("held"), keystore.InFlight)
		expect(t, s, request("new"), keystore.New)
	})
	t.Run("empty", func(t *testing.T) {
		server := redistest.Start(t, localredis.Options{Settings: map[string]string{"appendonly": "no"}})
		found := ensure(t, dsnOf(server), "")
		s := open(t, redis.Config{DSN: dsnOf(server)})
		held := request("held")
		expect(t, s, held, keystore.New)
		server.Kill()
		must(t, server.Restart(t.Context(), nil))
		_, err := s.Reserve(t.Context(), request("held"))
		refuses(t, err, keystore.ErrUnavailable, keystore.ErrDataLost)
		refuses(t, s.Check(t.Context()), keystore.ErrDataLost)
		if again := ensure(t, dsnOf(server), found.ID); again.Lost != again.Buckets || again.ID != found.ID {
			t.Errorf("found %+v, want a loss everywhere", again)
		}
		lost(t, s)
	})
	t.Run("from an old snapshot", func(t *testing.T) {
		server := redistest.Start(t, localredis.Options{Settings: map[string]string{"appendonly": "no"}})
		ensure(t, dsnOf(server), "")
		s := open(t, redis.Config{DSN: dsnOf(server)})
		do(t, server, "SAVE")
		expect(t, s, request("held"), keystore.New)
		server.Kill()
		must(t, server.Restart(t.Context(), nil))
		_, err := s.Reserve(t.Context(), request("held"))
		refuses(t, err, keystore.ErrUnavailable, keystore.ErrDataLost)
		if again := ensure(t, dsnOf(server), ""); again.Lost != again.Buckets {
			t.Errorf("found %+v, want a loss everywhere", again)
		}
		lost(t, s)
	})
}

// lost: after a loss, a key that is not there is unknown, not new, and goes on as any unknown one.
func lost(t *testing.T, s keystore.Store) {
	t.Helper()
	must(t, s.Check(t.Context()))
	expect(t, s, request("held"), keystore.Unknown)
	again := request("held")
	again.TakeOver = true
	expect(t, s, again, keystore.TakenOver)
	must(t, s.Release(t.Context(), owner(again)))
	expect(t, s, request("held"), keystore.Unknown) // what the lost attempt did is still not known
}

// TestInterruptedKeyspace: a keyspace that was made halfway is not one that has been lost.
func TestInterruptedKeyspace(t *testing.T) {
	server := redistest.Start(t, localredis.Options{})
	ensure(t, dsnOf(server), "")
	_, epoch, _ := redis.SlotOf(keyspaceName, "client", "key")
	keys, _ := do(t, server, "KEYS", "*epoch").([]any)
	for _, key := range keys {
		do(t, server, "HSET", key, "making", "1")
	}
	do(t, server, "DEL", epoch)
	s := open(t, redis.Config{DSN: dsnOf(server)})
	_, err := s.Reserve(t.Context(), request("key"))
	refuses(t, err, keystore.ErrUnavailable)
	if found := ensure(t, dsnOf(server), ""); found.Lost != 0 {
		t.Errorf("found %+v, want no loss", found)
	}
	expect(t, s, request("key"), keystore.New)

	do(t, server, "DEL", epoch)
	if found := ensure(t, dsnOf(server), ""); found.Lost != 1 {
		t.Errorf("found %+v, want the loss of one bucket", found)
	}
	expect(t, s, request("key"), keystore.InFlight) // what is there is there
	for i := 0; ; i++ {
		key := fmt.Sprint("key ", i)
		if _, other, _ := redis.SlotOf(keyspaceName, "client", key); other == epoch {
			expect(t, s, request(key), keystore.Unknown)
			return
		}
	}
}

// TestReplicasMissing: a write that too few replicas have is unknown.
func TestReplicasMissing(t *testing.T) {
	server := redistest.Start(t, localredis.Options{})
	ensure(t, dsnOf(server), "")
	strict, alone := open(t, redis.Config{DSN: dsnOf(server), MinReplicas: 1, Timeout: 500 * time.Millisecond}), open(t, redis.Config{DSN: dsnOf(server)})
	r := request("key")
	_, err := strict.Reserve(t.Context(), r)
	refuses(t, err, keystore.ErrUnavailable, keystore.ErrClusterDegraded)
	refuses(t, strict.Check(t.Context()), keystore.ErrUnavailable)
	expect(t, alone, r, keystore.New) // it may have taken effect, and has
	refuses(t, strict.Complete(t.Context(), owner(r), created()), keystore.ErrUnavailable)

	host, port, _ := strings.Cut(server.Addr(), ":")
	redistest.Start(t, localredis.Options{Settings: map[string]string{"replicaof": host + " " + port}})
	until(t, func() error { return strict.Complete(t.Context(), owner(r), created()) })
	expect(t, strict, request("key"), keystore.Completed)
}
