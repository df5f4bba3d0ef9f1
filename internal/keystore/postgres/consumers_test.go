// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/keystoretest"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/localpg/pgtest"
	"github.com/idempotency-dev/operator/internal/retention"
)

const deliveryWindow = 72 * time.Hour

// mailroom is an app that consumes messages on the database of its key store. Its role may deliver, and do what it wants in its own table.
type mailroom struct {
	*database
	dsn string // the app's
}

func newMailroom(t testing.TB) *mailroom {
	t.Helper()
	d := newDatabase(t)
	d.must(d.admin.EnsureConsumers(t.Context(), keyspaceName, "", map[string]time.Duration{"orders": deliveryWindow, "audit": deliveryWindow}))
	d.partitionsOf(postgres.ConsumersOf(keyspaceName), keystoretest.Start().Add(-4*24*time.Hour), 10)
	d.setClock(keystoretest.Start())
	d.exec("CREATE TABLE effects (id text NOT NULL)")
	role := "Consumer " + d.name()
	d.exec(`CREATE ROLE "` + role + `" LOGIN PASSWORD 'secret'`)
	t.Cleanup(func() { pgtest.Exec(t, pgtest.Server(t), `DROP ROLE "`+role+`"`) })
	t.Cleanup(func() { d.exec(`DROP OWNED BY "` + role + `"`) })
	d.exec(`GRANT INSERT ON effects TO "` + role + `"`)
	d.exec(`GRANT USAGE ON SCHEMA idempotency TO "` + role + `"`)
	d.exec(`GRANT EXECUTE ON FUNCTION idempotency.first_delivery(text, text, text) TO "` + role + `"`)
	return &mailroom{database: d, dsn: with(t, d.dsn, func(u *url.URL) { u.User = url.UserPassword(role, "secret") })}
}

// begin starts a transaction whose snapshot, if it keeps one, is taken.
func (m *mailroom) begin(level pgx.TxIsoLevel) (pgx.Tx, uint32) {
	m.Helper()
	conn := connect(m.TB, m.dsn)
	tx, err := conn.BeginTx(context.Background(), pgx.TxOptions{IsoLevel: level})
	m.must(err)
	_, err = tx.Exec(context.Background(), "SELECT count(*) FROM pg_class")
	m.must(err)
	return tx, conn.PgConn().PID()
}

func deliver(tx pgx.Tx, consumer, id string) (first bool, err error) {
	err = tx.QueryRow(context.Background(), "SELECT idempotency.first_delivery($1, $2, $3)", keyspaceName, consumer, id).Scan(&first)
	return first, err
}

// expect wants first of the delivery to orders.
func (m *mailroom) expect(tx pgx.Tx, id string, first bool) {
	m.Helper()
	m.expectOf(tx, "orders", id, first)
}

func (m *mailroom) expectOf(tx pgx.Tx, consumer, id string, first bool) {
	m.Helper()
	got, err := deliver(tx, consumer, id)
	m.must(err)
	if got != first {
		m.Fatalf("delivery of %s to %s: first is %t, want %t", id, consumer, got, first)
	}
}

func midnight() time.Time { return keystoretest.Start().Truncate(24 * time.Hour).Add(24 * time.Hour) }

// TestFirstDelivery: once for each committed effect and each consumer.
func TestFirstDelivery(t *testing.T) {
	m := newMailroom(t)
	for _, level := range levels() {
		id := "m " + string(level)
		for range 2 {
			tx, _ := m.begin(level)
			m.expect(tx, id, true)
			m.expect(tx, id, false)
			nested, err := tx.Begin(t.Context())
			m.must(err)
			m.expect(nested, id+" in a savepoint", true)
			m.must(nested.Rollback(t.Context()))
			m.expect(tx, id+" in a savepoint", true)
			m.must(tx.Rollback(t.Context()))
		}
		tx, _ := m.begin(level)
		m.expect(tx, id, true)
		m.must(tx.Commit(t.Context()))
		for _, now := range []time.Time{keystoretest.Start(), midnight(), keystoretest.Start().Add(deliveryWindow - time.Microsecond)} {
			m.setClock(now)
			tx, _ = m.begin(level)
			m.expect(tx, id, false)
			m.must(tx.Commit(t.Context()))
		}
		tx, _ = m.begin(level)
		m.expectOf(tx, "audit", id, true)
		m.must(tx.Commit(t.Context()))
		m.setClock(keystoretest.Start().Add(deliveryWindow))
		tx, _ = m.begin(level)
		m.expect(tx, id, true)
		m.must(tx.Commit(t.Context()))
		m.rows(id, 2) // one for each consumer
		m.setClock(keystoretest.Start())
	}
}

// rows counts what is recorded of a message.
func (m *mailroom) rows(id string, want int) {
	m.Helper()
	var n int
	sql := "SELECT count(*) FROM idempotency." + postgres.Relation(postgres.ConsumersOf(keyspaceName)) + " WHERE key = $1"
	m.must(m.conn.QueryRow(context.Background(), sql, id).Scan(&n))
	if n != want {
		m.Errorf("%d rows of %s, want %d", n, id, want)
	}
}

// TestConcurrentDelivery: the second of two waits for the first's end, within a day and across midnight, whatever isolation levels they have.
func TestConcurrentDelivery(t *testing.T) {
	m := newMailroom(t)
	for _, level := range levels() {
		for _, later := range []time.Duration{0, 1} {
			if first, err := m.race(level, later, false); !first || err != nil {
				t.Errorf("%s, %d later, after a rollback: %t, %v", level, later, first, err)
			}
			first, err := m.race(level, later, true)
			if level == pgx.ReadCommitted && (first || err != nil) || level != pgx.ReadCommitted && sqlState(err) != "40001" {
				t.Errorf("%s, %d later, after a commit: %t, %v", level, later, first, err)
			}
		}
	}
}

// race delivers a message twice, the second time at level, and later by some microseconds: from 1 on, on the next day. It is under way when the
// first one's transaction ends. It returns what the second is told.
func (m *mailroom) race(level pgx.TxIsoLevel, later time.Duration, commit bool) (bool, error) {
	m.Helper()
	id := fmt.Sprint(level, later, commit)
	m.setClock(midnight().Add(-1 * time.Microsecond))
	one, _ := m.begin(pgx.ReadCommitted)
	m.expect(one, id, true)
	two, pid := m.begin(level)
	m.setClock(midnight().Add((later - 1) * time.Microsecond))
	var first bool
	var err error
	var second sync.WaitGroup
	second.Go(func() { first, err = deliver(two, "orders", id) })
	await(m.TB, "the second delivery waits", func() bool { return waiting(m.TB, m.database, pid) })
	end := one.Rollback
	if commit {
		end = one.Commit
	}
	m.must(end(context.Background()))
	second.Wait()
	_ = two.Rollback(context.Background())
	return first, err
}

// singleDelivery is the delivery as one statement, with the lock: its snapshot is older than its lock.
const singleDelivery = `
CREATE OR REPLACE FUNCTION idempotency.%[1]s_deliver(p_client text, p_key text) RETURNS boolean LANGUAGE sql VOLATILE AS $$
	WITH locked AS MATERIALIZED (
		SELECT pg_advisory_xact_lock(hashtextextended(p_key, hashtextextended(p_client, 0))), idempotency.now_() AS now_at
	), inserted AS (
		INSERT INTO idempotency.%[1]s (client, key, bucket, expires_at)
		SELECT p_client, p_key, date_trunc('day', now_at, 'UTC'), now_at + '72h' FROM locked
		WHERE NOT EXISTS (SELECT FROM idempotency.%[1]s t WHERE t.client = p_client AND t.key = p_key)
		RETURNING key
	)
	SELECT EXISTS (SELECT FROM inserted)
$$`

// TestSingleStatementDeliversTwice shows that the race finds what is wrong: such a function tells both that they are first.
func TestSingleStatementDeliversTwice(t *testing.T) {
	m := newMailroom(t)
	m.exec(fmt.Sprintf(singleDelivery, postgres.Relation(postgres.ConsumersOf(keyspaceName))))
	if first, err := m.race(pgx.ReadCommitted, 1, true); !first || err != nil {
		t.Errorf("first is %t, %v: the race does not find it", first, err)
	}
}

// TestDeliveriesInOtherOrder: two transactions that take two messages in opposite orders. One is told of the deadlock, and is right when it tries again.
func TestDeliveriesInOtherOrder(t *testing.T) {
	m := newMailroom(t)
	one, pid := m.begin(pgx.ReadCommitted)
	two, _ := m.begin(pgx.ReadCommitted)
	m.expect(one, "a", true)
	m.expect(two, "b", true)
	var first bool
	var err error
	var waits sync.WaitGroup
	waits.Go(func() { first, err = deliver(one, "orders", "b") })
	await(t, "the first waits for b", func() bool { return waiting(t, m.database, pid) })
	_, other := deliver(two, "orders", "a")
	if other == nil { // the first one was told
		m.must(two.Commit(t.Context()))
		waits.Wait()
		other, first = err, true
	} else {
		m.must(two.Rollback(t.Context()))
		waits.Wait()
		m.must(err)
		m.must(one.Commit(t.Context()))
	}
	if sqlState(other) != "40P01" || !first {
		t.Errorf("deadlock: %v; the survivor is first: %t", other, first)
	}
	for _, id := range []string{"a", "b"} {
		tx, _ := m.begin(pgx.ReadCommitted)
		m.expect(tx, id, false)
		m.must(tx.Rollback(t.Context()))
	}
}

// TestDeliveryBehindTheSnapshot: what was committed after the caller's snapshot was taken makes it fail, in whatever bucket it is. Were it not looked for
// beyond the snapshot, or in fewer days, the caller would be told that its delivery is the first.
func TestDeliveryBehindTheSnapshot(t *testing.T) {
	const day = 24 * time.Hour
	const blind = `CREATE OR REPLACE FUNCTION idempotency.probe_deliveries(parent regclass, now_at timestamptz, client text, key text)
		RETURNS void LANGUAGE sql AS ''`
	for _, row := range []struct {
		reason     string
		before     time.Duration // of the other delivery, back from midnight
		inProgress bool          // when the snapshot was taken
		noted      time.Duration // back from midnight, before the snapshot was taken; 0: nothing is
		gap        int           // days up to midnight's that have no partition when the other delivery comes
		sabotage   string
	}{
		{reason: "in the same bucket, begun later", before: -1, noted: time.Hour},
		{reason: "in yesterday's, begun later", before: 1, noted: time.Hour},
		{reason: "in yesterday's, begun later, nothing noted", before: 1},
		{reason: "in yesterday's, in progress", before: 1, inProgress: true, noted: 2},
		{reason: "in the day of a clock that was ahead", before: -day, noted: time.Hour},
		{reason: "three days ago, in progress all the time", before: 3 * day, inProgress: true, noted: time.Hour},
		{reason: "in the newest, as days had none", before: 1, gap: 3, noted: time.Hour},
		{reason: "in the newest, as days had none, in progress", before: 1, gap: 3, inProgress: true, noted: time.Hour},
		{reason: "sabotaged, in yesterday's", before: 1, sabotage: blind},
		{reason: "sabotaged, three days ago", before: 3 * day, inProgress: true, noted: time.Hour, sabotage: "UPDATE idempotency.partitions SET noted_by = '3'"},
	} {
		for _, level := range levels()[1:] {
			t.Run(strings.ReplaceAll(row.reason, " ", "_")+"/"+string(level), func(t *testing.T) {
				m := newMailroom(t)
				m.drop(row.gap)
				refill := func() { // from the other delivery's day on, as retention does
					if row.gap > 0 {
						m.partitionsOf(postgres.ConsumersOf(keyspaceName), midnight().Add(-day), 2)
					}
				}
				other, _ := m.begin(pgx.ReadCommitted)
				m.setClock(midnight().Add(-row.before))
				if row.inProgress {
					m.expect(other, "m", true)
				}
				if row.noted > 0 {
					m.note(midnight().Add(-row.noted))
				}
				if row.sabotage != "" {
					m.exec(row.sabotage)
				}
				if row.inProgress {
					refill()
				}
				late, _ := m.begin(level)
				if !row.inProgress {
					m.expect(other, "m", true)
				}
				m.must(other.Commit(t.Context()))
				if !row.inProgress {
					refill()
				}
				m.setClock(midnight())
				first, err := deliver(late, "orders", "m")
				if row.sabotage == "" && sqlState(err) != "40001" || row.sabotage != "" && (err != nil || !first) {
					t.Errorf("first is %t, %v", first, err)
				}
			})
		}
	}
}

// drop takes away all days but those that are over days before midnight's end.
func (m *mailroom) drop(days int) {
	m.Helper()
	for i := range 10 {
		day := keystoretest.Start().Add(time.Duration(i-4) * 24 * time.Hour)
		if days > 0 && day.After(midnight().Add(-time.Duration(days-1)*24*time.Hour)) {
			m.exec("DROP TABLE idempotency." + postgres.Relation(postgres.ConsumersOf(keyspaceName)) + day.Format("_p20060102"))
		}
	}
}

// note leaves the mark that retention leaves when it makes a partition.
func (m *mailroom) note(now time.Time) {
	m.Helper()
	_, err := m.conn.Exec(context.Background(), `INSERT INTO idempotency.partitions (keyspace, relation, oid, from_bucket, to_bucket, phase, noted_at, noted_by)
		VALUES ($1, 'noted', 1, $2, $2, 'open', $2, pg_current_xact_id())`, keyspaceName, now)
	m.must(err)
}

// TestDeliveryWithoutTodaysPartition: the newest one takes it.
func TestDeliveryWithoutTodaysPartition(t *testing.T) {
	m := newMailroom(t)
	m.setClock(keystoretest.Start().Add(20 * 24 * time.Hour))
	for _, first := range []bool{true, false} {
		tx, _ := m.begin(pgx.ReadCommitted)
		m.expect(tx, "m", first)
		m.must(tx.Commit(t.Context()))
	}
	m.rows("m", 1)
}

// TestProbesLeaveNothing: deliveries at REPEATABLE READ leave one row each.
func TestProbesLeaveNothing(t *testing.T) {
	m := newMailroom(t)
	tx, _ := m.begin(pgx.RepeatableRead)
	m.expect(tx, "m", true)
	m.must(tx.Commit(t.Context()))
	m.rows("m", 1)
}

// TestConsumerMayOnlyDeliver: its role has no other right, and nobody has the right by default.
func TestConsumerMayOnlyDeliver(t *testing.T) {
	m := newMailroom(t)
	relation := postgres.Relation(postgres.ConsumersOf(keyspaceName))
	conn := connect(t, m.dsn)
	for _, sql := range []string{
		"SELECT * FROM idempotency.consumers",
		"SELECT * FROM idempotency." + relation,
		"DELETE FROM idempotency." + relation,
		"INSERT INTO idempotency." + relation + keystoretest.Start().Format("_p20060102") + " VALUES ('orders', 'm', now(), now())",
		"SELECT idempotency." + relation + "_deliver('orders', 'm')",
		"SELECT idempotency.probe_deliveries('pg_class', now(), 'orders', 'm')",
	} {
		if _, err := conn.Exec(t.Context(), sql); sqlState(err) != "42501" {
			t.Errorf("%s: %v, want 42501", sql, err)
		}
	}
	if _, err := connect(t, m.sidecar()).Exec(t.Context(), "SELECT idempotency.first_delivery('k', 'orders', 'm')"); sqlState(err) != "42501" {
		t.Errorf("a sidecar delivers: %v, want 42501", err)
	}
}

// TestDeliveriesUnderRetention: day by day, on what retention makes and drops, at every isolation level. A message is remembered for its window, in a partition that
// is sealed meanwhile, also when a look beyond the snapshot has tried to write there.
func TestDeliveriesUnderRetention(t *testing.T) {
	m := newMailroom(t)
	m.must(m.admin.DropKeyspace(t.Context(), postgres.ConsumersOf(keyspaceName)))
	m.must(m.admin.EnsureConsumers(t.Context(), keyspaceName, "", map[string]time.Duration{"orders": 50 * time.Hour}))
	clock := &stopped{}
	maintain := func(day int) (report retention.Report) {
		t.Helper()
		clock.now = keystoretest.Start().AddDate(0, 0, day)
		m.setClock(clock.now)
		for range 3 { // a partition is sealed, retired, detached and dropped
			var err error
			report, err = retention.Run(t.Context(), m.admin.Catalogue(postgres.ConsumersOf(keyspaceName)), retention.Settings{CreateAhead: 2}, clock)
			m.must(err)
		}
		return report
	}
	for day, want := range []struct {
		first      bool
		partitions int
	}{{true, 3}, {false, 4}, {false, 5}, {true, 5}, {false, 5}} {
		if report := maintain(day); report.Count != want.partitions || !report.Ready() {
			t.Errorf("day %d: %d partitions, want %d; %v", day, report.Count, want.partitions, report.Problems)
		}
		for _, level := range levels() {
			tx, _ := m.begin(level)
			m.expect(tx, "m "+string(level), want.first)
			m.expect(tx, fmt.Sprint("another of day ", day, level), true)
			m.must(tx.Commit(t.Context()))
		}
	}
}

// TestFirstDeliveryRefuses: what is not declared, and what is no message id.
func TestFirstDeliveryRefuses(t *testing.T) {
	m := newMailroom(t)
	for _, row := range []struct{ args, code, reason string }{
		{`'nowhere', 'orders', 'm'`, "IK005", "a keyspace that is not there"},
		{`$$` + keyspaceName + `$$, 'nobody', 'm'`, "IK005", "a consumer that is not declared"},
		{`NULL, 'orders', 'm'`, "IK005", "no keyspace"},
		{`$$` + keyspaceName + `$$, NULL, 'm'`, "IK005", "no consumer"},
		{`$$` + keyspaceName + `$$, 'orders', NULL`, "22023", "no id"},
		{`$$` + keyspaceName + `$$, 'orders', ''`, "22023", "an empty id"},
		{`$$` + keyspaceName + `$$, 'orders', repeat('m', 1025)`, "22023", "a byte too many"},
		{`$$` + keyspaceName + `$$, 'orders', repeat('m', 1024)`, "", "the longest id"},
	} {
		if _, err := connect(t, m.dsn).Exec(t.Context(), "SELECT idempotency.first_delivery("+row.args+")"); sqlState(err) != row.code {
			t.Errorf("%s: %v, want %q", row.reason, err, row.code)
		}
	}
}

// TestConsumersAreKept: a window may change, a claim may not, and the keyspace goes as others do.
func TestConsumersAreKept(t *testing.T) {
	m := newMailroom(t)
	m.must(m.admin.EnsureConsumers(t.Context(), keyspaceName, "", map[string]time.Duration{"orders": time.Hour}))
	tx, _ := m.begin(pgx.ReadCommitted)
	m.expect(tx, "m", true)
	m.expectOf(tx, "audit", "m", true)
	m.must(tx.Commit(t.Context()))
	m.setClock(keystoretest.Start().Add(time.Hour))
	tx, _ = m.begin(pgx.ReadCommitted)
	m.expect(tx, "m", true)
	m.expectOf(tx, "audit", "m", false)
	m.must(tx.Rollback(t.Context()))
	if err := m.admin.EnsureConsumers(t.Context(), keyspaceName, "another", nil); !errors.Is(err, keystore.ErrKeyspaceTaken) {
		t.Errorf("another claim: %v", err)
	}
	m.must(m.admin.DropKeyspace(t.Context(), postgres.ConsumersOf(keyspaceName)))
	m.must(m.admin.EnsureConsumers(t.Context(), keyspaceName, "another", nil))
}

// TestOneEffectPerMessage: many consumers at all isolation levels, with duplicates, rollbacks and lost sessions, while the clock goes over midnights.
func TestOneEffectPerMessage(t *testing.T) {
	m := newMailroom(t)
	const messages, workers = 300, 8
	queue := make(chan string, 10*messages)
	for i := range messages {
		for range 1 + i%3 {
			queue <- fmt.Sprint("m", i)
		}
	}
	var pending sync.WaitGroup
	pending.Add(len(queue))
	for worker := range workers {
		go func() {
			for id := range queue {
				if m.consume(id, levels()[worker%3]) {
					pending.Done()
				} else {
					queue <- id
				}
			}
		}()
	}
	done := make(chan struct{})
	go func() { pending.Wait(); close(done) }()
	for now := midnight().Add(-36 * time.Hour); ; now = now.Add(time.Minute) {
		select {
		case <-done:
			close(queue)
			var n, distinct int
			m.must(m.conn.QueryRow(t.Context(), "SELECT count(*), count(DISTINCT id) FROM effects").Scan(&n, &distinct))
			if n != messages || distinct != messages {
				t.Errorf("%d effects of %d messages, want %d of each", n, distinct, messages)
			}
			return
		default:
		}
		if now.Before(midnight().Add(24 * time.Hour)) {
			m.setClock(now)
		}
	}
}

// consume handles a message, or fails to: then the broker delivers it again.
func (m *mailroom) consume(id string, level pgx.TxIsoLevel) (done bool) {
	ctx := context.Background()
	conn := pgtest.Connect(m.TB, m.dsn)
	defer func() { _ = conn.Close(ctx) }()
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
	if err != nil {
		return false
	}
	first, err := deliver(tx, "orders", id)
	if err != nil {
		return false
	}
	if first {
		if _, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1)", id); err != nil {
			return false
		}
	}
	switch rand.N(6) {
	case 0:
		_ = conn.PgConn().Conn().Close()
		return false
	case 1:
		_ = tx.Commit(ctx) // and dies before it acknowledges
		return false
	}
	return tx.Commit(ctx) == nil
}
