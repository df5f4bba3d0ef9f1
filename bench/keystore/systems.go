// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
)

// system is what is compared.
type system interface {
	// pair reserves a new key and completes it with answer.
	pair(ctx context.Context, key string, answer []byte) error
	// replay asks for a completed key and checks the answer.
	replay(ctx context.Context, key string, answer []byte) error
}

// ours is one sidecar's store, with its default of 4 connections.
type ours struct {
	store  *postgres.Store
	holder keystore.Holder
}

const lease = 24 * time.Hour // longer than a run: renewing it is not what is measured

// newOurs makes a keyspace with a window of so many days.
func newOurs(ctx context.Context, dsn, keyspace string, window int) (*ours, error) {
	admin, err := postgres.OpenAdmin(ctx, dsn, "")
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	if err := admin.Migrate(ctx); err != nil {
		return nil, err
	}
	if err := admin.EnsureKeyspace(ctx, keyspace, ""); err != nil {
		return nil, err
	}
	if err := partitions(ctx, dsn, keyspace, window); err != nil {
		return nil, err
	}
	store, err := postgres.Open(ctx, postgres.Config{DSN: dsn, Keyspace: keyspace, Timeout: time.Minute})
	if err != nil {
		return nil, err
	}
	o := &ours{store: store, holder: keystore.NewHolder()}
	if err := store.KeepAlive(ctx, o.holder, lease); err != nil {
		return nil, err
	}
	return o, nil
}

// partitions makes what retention has made of a keyspace: one for each day of the window, today, and the next 7 days.
func partitions(ctx context.Context, dsn, keyspace string, window int) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	parent := "idempotency." + postgres.Relation(keyspace)
	for n := -window; n <= 7; n++ {
		day := today().AddDate(0, 0, n)
		partition := parent + day.Format("_p20060102")
		_, err := conn.Exec(ctx, fmt.Sprintf(`CREATE TABLE %s (LIKE %s INCLUDING ALL, PRIMARY KEY (client, key));
			ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM ('%s') TO ('%s')`,
			partition, parent, parent, partition, day.Format(time.RFC3339), day.AddDate(0, 0, 1).Format(time.RFC3339)))
		if err != nil {
			return err
		}
	}
	return nil
}

func today() time.Time { return time.Now().UTC().Truncate(24 * time.Hour) }

// fill writes entries into the partitions of keyspace up to today's, the same number into each. They are completed with empty answers: a look-up of a
// new key reads the index alone.
func fill(ctx context.Context, out io.Writer, dsn, keyspace string, entries int) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	const days = 31
	parent := "idempotency." + postgres.Relation(keyspace)
	for n := range days {
		day := today().AddDate(0, 0, n-days+1)
		partition, bucket := parent+day.Format("_p20060102"), day.Format(time.RFC3339)
		// The primary key comes last, and the rows into a table of this transaction: see the server's settings.
		_, err := conn.Exec(ctx, fmt.Sprintf(`BEGIN; DROP TABLE %[1]s; CREATE TABLE %[1]s (LIKE %[2]s INCLUDING ALL);
			INSERT INTO %[1]s (client, key, bucket, fingerprint, state, token, holder, seed, attempts, route, lifetime, reserved_at, expires_at, status)
			SELECT 'client', md5(i::text || '%[3]s'), '%[3]s', '\x01', 2, u, u, u, 1, 'bench', '30 days', '%[3]s',
				timestamptz '%[3]s' + interval '31 days', 201
			FROM generate_series(1, %[4]d) i, LATERAL (SELECT md5(i::text)::uuid AS u) r;
			ALTER TABLE %[1]s ADD PRIMARY KEY (client, key);
			ALTER TABLE %[2]s ATTACH PARTITION %[1]s FOR VALUES FROM ('%[3]s') TO ('%[5]s'); COMMIT`,
			partition, parent, bucket, entries/days, day.AddDate(0, 0, 1).Format(time.RFC3339)))
		if err != nil {
			return fmt.Errorf("fill %s: %w", partition, err)
		}
		if _, err := fmt.Fprintf(out, "%s filled %d of %d partitions with %d entries\n", time.Now().UTC().Format(time.TimeOnly), n+1, days, entries/days); err != nil {
			return err
		}
	}
	_, err = conn.Exec(ctx, "UPDATE idempotency.keyspaces SET newest_bucket = $1 WHERE name = $2; ", today(), keyspace)
	if err == nil {
		_, err = conn.Exec(ctx, "VACUUM (ANALYZE) "+parent)
	}
	return err
}

func (o *ours) close() { o.store.Close() }

func (o *ours) reserve(ctx context.Context, key string) (keystore.Reservation, keystore.Decision, error) {
	r := keystore.Reservation{
		Client: "client", Key: key, Fingerprint: keystore.Fingerprint{1}, Token: keystore.NewToken(), Holder: o.holder, Lease: lease,
		Window: 24 * time.Hour, Route: "bench",
	}
	d, err := o.store.Reserve(ctx, r)
	return r, d, err
}

func (o *ours) pair(ctx context.Context, key string, answer []byte) error {
	r, d, err := o.reserve(ctx, key)
	if err != nil {
		return err
	}
	if d.Outcome != keystore.New {
		return fmt.Errorf("outcome %d of a new key", d.Outcome)
	}
	return o.store.Complete(ctx, keystore.Ownership{Client: r.Client, Key: key, Token: r.Token}, keystore.Answer{Status: 201, Body: answer})
}

func (o *ours) replay(ctx context.Context, key string, answer []byte) error {
	_, d, err := o.reserve(ctx, key)
	if err != nil {
		return err
	}
	if d.Outcome != keystore.Completed || !bytes.Equal(d.Answer.Body, answer) {
		return errors.New("wrong answer")
	}
	return nil
}

// textbook is what most libraries do, done well.
type textbook struct{ pool *pgxpool.Pool }

func newTextbook(ctx context.Context, dsn string) (*textbook, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, errors.New("parse DSN")
	}
	config.MaxConns = 16
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	_, err = pool.Exec(ctx, `CREATE TABLE textbook (
		client text COLLATE "C", key text COLLATE "C", fingerprint bytea NOT NULL, locked_at timestamptz NOT NULL DEFAULT now(),
		status integer, header bytea, body bytea, PRIMARY KEY (client, key))`)
	return &textbook{pool: pool}, err
}

func (t *textbook) close() { t.pool.Close() }

func (t *textbook) pair(ctx context.Context, key string, answer []byte) error {
	fingerprint := make([]byte, 32)
	tag, err := t.pool.Exec(ctx, "INSERT INTO textbook (client, key, fingerprint) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", "client", key, fingerprint)
	if err != nil {
		return err
	}
	if tag.RowsAffected() != 1 {
		return errors.New("a new key is taken")
	}
	tag, err = t.pool.Exec(ctx, "UPDATE textbook SET status = $3, body = $4 WHERE client = $1 AND key = $2", "client", key, 201, answer)
	if err == nil && tag.RowsAffected() != 1 {
		err = errors.New("the key has gone")
	}
	return err
}

// replay tries to insert, as every request does, and reads what is there.
func (t *textbook) replay(ctx context.Context, key string, answer []byte) error {
	tag, err := t.pool.Exec(ctx, "INSERT INTO textbook (client, key, fingerprint) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", "client", key, make([]byte, 32))
	if err != nil {
		return err
	}
	if tag.RowsAffected() != 0 {
		return errors.New("a known key is new")
	}
	var fingerprint, header, body []byte
	var status int
	err = t.pool.QueryRow(ctx, "SELECT fingerprint, status, header, body FROM textbook WHERE client = $1 AND key = $2", "client", key).
		Scan(&fingerprint, &status, &header, &body)
	if err == nil && !bytes.Equal(body, answer) {
		err = errors.New("wrong answer")
	}
	return err
}
