// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/keystoretest"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
)

// TestManyManagersAtOnce: they migrate, make keyspaces and grant, all at once, in a database without anything, in a schema with an odd name.
func TestManyManagersAtOnce(t *testing.T) {
	dsn := pgtest.NewDatabase(t)
	const schema = `Idem"potency`
	superuser, err := postgres.UserOf(dsn)
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, 8)
	var group sync.WaitGroup
	for i := range errs {
		admin, err := postgres.OpenAdmin(t.Context(), dsn, schema)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(admin.Close)
		group.Go(func() {
			for _, step := range []func(context.Context) error{
				admin.Migrate,
				func(ctx context.Context) error { return admin.EnsureKeyspace(ctx, "shared", "") },
				func(ctx context.Context) error {
					return admin.EnsureKeyspace(ctx, fmt.Sprint("own ", i), fmt.Sprint("claim ", i))
				},
				func(ctx context.Context) error { return admin.Grant(ctx, superuser) },
				admin.Migrate,
				func(ctx context.Context) error { _, err := admin.Probe(ctx, wall{}); return err },
			} {
				if errs[i] = step(t.Context()); errs[i] != nil {
					return
				}
			}
		})
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
}

// TestOldKeyspacesGetNewFunctions: a keyspace of an older version is brought up to date, and an old function that is still called goes on.
func TestOldKeyspacesGetNewFunctions(t *testing.T) {
	d := newDatabase(t)
	d.partitions(keystoretest.Start(), 1)
	d.setClock(keystoretest.Start())
	store := d.open(t, d.sidecar())
	r := keystore.Reservation{Client: "c", Key: "k", Token: keystore.NewToken(), Holder: keystore.NewHolder(), Lease: time.Minute, Window: time.Hour}
	if _, err := store.Reserve(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	relation := postgres.Relation(keyspaceName)
	d.exec("UPDATE idempotency.keyspaces SET version = 0")
	d.exec("ALTER FUNCTION idempotency." + relation + "_check() RESET ALL")
	d.must(d.admin.Migrate(t.Context()))
	var version int32
	var configured bool
	d.must(connect(t, d.dsn).QueryRow(t.Context(), `SELECT k.version, p.proconfig IS NOT NULL FROM idempotency.keyspaces k, pg_proc p
		WHERE p.proname = $1`, relation+"_check").Scan(&version, &configured))
	if version != postgres.Latest() || !configured {
		t.Errorf("version %d, made anew: %v", version, configured)
	}
	// The sidecar keeps its rights and its prepared statements.
	if err := store.Complete(t.Context(), keystore.Ownership{Client: "c", Key: "k", Token: r.Token}, keystore.Answer{Status: 200}); err != nil {
		t.Error(err)
	}
}

// TestNewerSchemaIsLeftAlone: an old manager neither changes it nor calls it healthy.
func TestNewerSchemaIsLeftAlone(t *testing.T) {
	d := newDatabase(t)
	d.exec("INSERT INTO idempotency.migrations VALUES (999)")
	d.must(d.admin.Migrate(t.Context()))
	health, err := d.admin.Probe(t.Context(), wall{})
	if !errors.Is(err, keystore.ErrSchemaOutdated) || health.SchemaVersion != 999 {
		t.Errorf("probe: %+v, %v", health, err)
	}
}

func TestKeyspaceIsClaimed(t *testing.T) {
	d := newDatabase(t)
	for _, row := range []struct {
		reason, name, claim string
		want                error
	}{
		{"new, for one", "a", "cluster/shop/a", nil},
		{"the same one again", "a", "cluster/shop/a", nil},
		{"another of the same name", "a", "other cluster/shop/a", keystore.ErrKeyspaceTaken},
		{"named on purpose, but it belongs to one", "a", "", keystore.ErrKeyspaceTaken},
		{"new, shared", "b", "", nil},
		{"shared by another", "b", "", nil},
		{"shared, and one wants it alone", "b", "cluster/shop/b", keystore.ErrKeyspaceTaken},
	} {
		if err := d.admin.EnsureKeyspace(t.Context(), row.name, row.claim); !errors.Is(err, row.want) {
			t.Errorf("%s: %v, want %v", row.reason, err, row.want)
		}
	}
}

func TestDropKeyspace(t *testing.T) {
	d := newDatabase(t)
	d.partitions(keystoretest.Start(), 2)
	relation := postgres.Relation(keyspaceName)
	partition := relation + keystoretest.Start().Format("_p20060102")
	d.exec(fmt.Sprintf(`ALTER TABLE idempotency.%s DETACH PARTITION idempotency.%s;
		INSERT INTO idempotency.partitions (relation, keyspace, oid, from_bucket, to_bucket, phase)
		SELECT '%[2]s', name, 'idempotency.%[2]s'::regclass, now(), now(), 'retiring' FROM idempotency.keyspaces`, relation, partition))
	d.must(d.admin.EnsureKeyspace(t.Context(), "other", ""))
	d.must(d.admin.DropKeyspace(t.Context(), keyspaceName))
	d.must(d.admin.DropKeyspace(t.Context(), keyspaceName)) // there is none
	var left int
	d.must(connect(t, d.dsn).QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_class WHERE starts_with(relname, $1))
		+ (SELECT count(*) FROM pg_proc WHERE starts_with(proname, $1)) + (SELECT count(*) FROM idempotency.keyspaces WHERE name = $2)`,
		relation, keyspaceName).Scan(&left))
	if left != 0 {
		t.Errorf("%d things are left", left)
	}
	d.must(d.admin.EnsureKeyspace(t.Context(), keyspaceName, "somebody"))
	d.must(d.admin.EnsureKeyspace(t.Context(), "other", ""))
}

// TestRelationNames: valid, distinct, stable, and short enough for every name that is made from them.
func TestRelationNames(t *testing.T) {
	long := strings.Repeat("a", 63) + "." + strings.Repeat("b", 253)
	names := []string{
		"shop.payments", "shop.Payments", "shop_payments", "shop-payments", "shop..payments", "", " ", "größe", "グローバル", "a\x00b",
		long, long + "c", strings.Repeat("é", 32), strings.Repeat("é", 33), "1", "select", `"; DROP TABLE x; --`,
	}
	seen := map[string]string{}
	valid := regexp.MustCompile(`^k_[a-z0-9_]*_[0-9a-f]{10}$`)
	for _, name := range names {
		relation := postgres.Relation(name)
		if other, taken := seen[relation]; taken {
			t.Errorf("%q and %q are both %s", name, other, relation)
		}
		seen[relation] = name
		if !valid.MatchString(relation) || len(relation+"_mark_unknown") > 63 || len(relation) > 45 {
			t.Errorf("%q: %s", name, relation)
		}
	}
	if got, want := postgres.Relation("shop.payments"), "k_shop_payments_0d62a89c24"; got != want {
		t.Errorf("the table of shop.payments is now %s, and was %s", got, want)
	}
}

// TestStatementsAreValid prepares every query.
func TestStatementsAreValid(t *testing.T) {
	d := newDatabase(t)
	conn := connect(t, d.dsn)
	for name, sql := range postgres.Statements("idempotency", keyspaceName) {
		if _, err := conn.Prepare(t.Context(), name, sql); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestInspectAndSettle: what an administrator sees of each state, and what ends an unknown outcome.
func TestInspectAndSettle(t *testing.T) {
	d := newDatabase(t)
	d.partitions(keystoretest.Start(), 1)
	d.setClock(keystoretest.Start())
	store := d.open(t, d.sidecar())
	request := func(key string) keystore.Reservation {
		return keystore.Reservation{
			Client: "c", Key: key, Token: keystore.NewToken(), Holder: keystore.NewHolder(), Lease: time.Minute, Window: time.Hour, Route: "pay",
		}
	}
	reserve := func(key string) keystore.Reservation {
		r := request(key)
		if got, err := store.Reserve(t.Context(), r); err != nil || got.Outcome != keystore.New {
			t.Fatalf("reserve %s: %v %v", key, got.Outcome, err)
		}
		return r
	}
	held, known, dead, lost := reserve("held"), reserve("known"), reserve("dead"), reserve("lost")
	own := func(r keystore.Reservation) keystore.Ownership {
		return keystore.Ownership{Client: r.Client, Key: r.Key, Token: r.Token}
	}
	answer := keystore.Answer{Status: 201, Body: []byte("x")}
	d.must(store.Complete(t.Context(), own(known), answer))
	d.must(store.Retire(t.Context(), dead.Holder))
	d.must(store.MarkUnknown(t.Context(), own(lost)))
	for _, row := range []struct {
		r      keystore.Reservation
		state  postgres.State
		answer *keystore.Answer
	}{
		{held, postgres.StateReserved, nil},
		{known, postgres.StateCompleted, &answer},
		{dead, postgres.StateUnknown, nil},
		{lost, postgres.StateUnknown, nil},
	} {
		got, err := d.admin.Inspect(t.Context(), keyspaceName, "c", row.r.Key)
		d.must(err)
		want := postgres.Entry{
			Client: "c", Key: row.r.Key, State: row.state, Route: "pay", Attempts: 1, Token: row.r.Token, Holder: row.r.Holder,
			Bucket: keystoretest.Start().Truncate(24 * time.Hour), ReservedAt: keystoretest.Start(), ExpiresAt: keystoretest.Start().Add(time.Hour),
			Answer: row.answer,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", row.r.Key, diff)
		}
	}
	if _, err := d.admin.Inspect(t.Context(), keyspaceName, "c", "absent"); !errors.Is(err, postgres.ErrNoEntry) {
		t.Errorf("inspect absent: %v", err)
	}
	open, err := d.admin.Unknown(t.Context(), keyspaceName, 10)
	d.must(err)
	if len(open) != 2 || open[0].Key != "dead" || open[1].Key != "lost" {
		t.Errorf("unknown: %+v", open)
	}
	one, err := d.admin.Unknown(t.Context(), keyspaceName, 1)
	d.must(err)
	if len(one) != 1 {
		t.Errorf("at most one: %d", len(one))
	}
	stale := own(dead)
	stale.Token = keystore.NewToken()
	for reason, o := range map[string]keystore.Ownership{"held": own(held), "completed": own(known), "changed since": stale} {
		if err := d.admin.Settle(t.Context(), keyspaceName, o, nil); !errors.Is(err, postgres.ErrNotUnknown) {
			t.Errorf("settle what is %s: %v", reason, err)
		}
	}
	d.must(d.admin.Settle(t.Context(), keyspaceName, own(dead), nil))
	d.must(d.admin.Settle(t.Context(), keyspaceName, own(lost), &answer))
	for _, r := range []keystore.Reservation{dead, lost} {
		if err := store.Complete(t.Context(), own(r), keystore.Answer{Status: 500}); !errors.Is(err, keystore.ErrNotOwner) {
			t.Errorf("stale owner of %s: %v", r.Key, err)
		}
	}
	reserve("dead")
	got, err := store.Reserve(t.Context(), request("lost"))
	if err != nil || got.Outcome != keystore.Completed || cmp.Diff(&answer, got.Answer) != "" {
		t.Errorf("settled with an answer: %+v, %v", got, err)
	}
	if left, err := d.admin.Unknown(t.Context(), keyspaceName, 10); err != nil || len(left) != 0 {
		t.Errorf("unknown in the end: %+v, %v", left, err)
	}
}

// TestMissingPartitions: writes go on without today's partition, stay unique when it comes, and stop only when there is none at all.
func TestMissingPartitions(t *testing.T) {
	d := newDatabase(t)
	store := d.open(t, d.sidecar())
	r := keystore.Reservation{Client: "c", Key: "k", Token: keystore.NewToken(), Holder: keystore.NewHolder(), Lease: time.Minute, Window: 24 * time.Hour}
	if _, err := store.Reserve(t.Context(), r); !errors.Is(err, keystore.ErrUnavailable) {
		t.Errorf("without any partition: %v", err)
	}
	today := keystoretest.Start()
	d.setClock(today)
	d.partitions(today.Add(-48*time.Hour), 1)
	d.partitions(today.Add(-72*time.Hour), 1)
	want := func(outcome keystore.Outcome, bucket time.Time) {
		t.Helper()
		got, err := store.Reserve(t.Context(), r)
		if err != nil || got.Outcome != outcome {
			t.Fatalf("reserve: %v, %v, want %v", got.Outcome, err, outcome)
		}
		e, err := d.admin.Inspect(t.Context(), keyspaceName, r.Client, r.Key)
		if err != nil || !e.Bucket.Equal(bucket.Truncate(24*time.Hour)) {
			t.Fatalf("in bucket %v, %v, want that of %v", e.Bucket, err, bucket)
		}
	}
	want(keystore.New, today.Add(-48*time.Hour))
	d.must(store.Check(t.Context()))
	d.partitions(today, 1)
	r.Token = keystore.NewToken()
	want(keystore.InFlight, today.Add(-48*time.Hour))
	r.Key, r.Token = "another", keystore.NewToken()
	want(keystore.New, today)
}

// wall is the machine's clock.
type wall struct{}

func (wall) Now() time.Time { return time.Now() }

// TestClockThatWasAhead: entries of days that the clock has shown by mistake are found when it is right again.
func TestClockThatWasAhead(t *testing.T) {
	d := newDatabase(t)
	d.partitions(keystoretest.Start(), 5)
	store := d.open(t, d.sidecar())
	r := keystore.Reservation{Client: "c", Key: "k", Token: keystore.NewToken(), Holder: keystore.NewHolder(), Lease: time.Minute, Window: 24 * time.Hour}
	for _, row := range []struct {
		reason string
		now    time.Time
		token  keystore.Token
		want   keystore.Outcome
	}{
		{"far ahead, beyond every partition", keystoretest.Start().AddDate(0, 1, 0), keystore.Token{1}, keystore.New},
		{"right again", keystoretest.Start(), keystore.Token{2}, keystore.InFlight},
		{"a day behind", keystoretest.Start().AddDate(0, 0, -1), keystore.Token{3}, keystore.InFlight},
	} {
		d.setClock(row.now)
		r.Token = row.token
		if got, err := store.Reserve(t.Context(), r); err != nil || got.Outcome != row.want {
			t.Errorf("%s: %v, %v, want %v", row.reason, got.Outcome, err, row.want)
		}
	}
	if err := store.Complete(t.Context(), keystore.Ownership{Client: "c", Key: "k", Token: keystore.Token{1}}, keystore.Answer{Status: 200}); err != nil {
		t.Error(err)
	}
}
