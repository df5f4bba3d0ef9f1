// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
)

// ours is one sidecar's store, with its default of 4 connections.
type ours struct {
	store  *postgres.Store
	holder keystore.Holder
}

const lease = 24 * time.Hour // longer than a run: renewing it is not what is measured

func newOurs(ctx context.Context, dsn string) (*ours, error) {
	admin, err := postgres.OpenAdmin(ctx, dsn, "")
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	if err := admin.Migrate(ctx); err != nil {
		return nil, err
	}
	if err := admin.EnsureKeyspace(ctx, "bench", ""); err != nil {
		return nil, err
	}
	if err := week(ctx, dsn); err != nil {
		return nil, err
	}
	store, err := postgres.Open(ctx, postgres.Config{DSN: dsn, Keyspace: "bench", Timeout: time.Minute})
	if err != nil {
		return nil, err
	}
	o := &ours{store: store, holder: keystore.NewHolder()}
	if err := store.KeepAlive(ctx, o.holder, lease); err != nil {
		return nil, err
	}
	return o, nil
}

// week makes what retention has made of a keyspace with a window of one day: partitions for yesterday, today and the next 7 days.
func week(ctx context.Context, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	parent := "idempotency." + postgres.Relation("bench")
	today := time.Now().UTC().Truncate(24 * time.Hour)
	for n := -1; n <= 7; n++ {
		day := today.AddDate(0, 0, n)
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
