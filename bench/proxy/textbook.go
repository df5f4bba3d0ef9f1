// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const textbookTable = `CREATE TABLE textbook (
	client text COLLATE "C", key text COLLATE "C", fingerprint bytea NOT NULL, locked_at timestamptz NOT NULL DEFAULT now(),
	status integer, header bytea, body bytea, PRIMARY KEY (client, key))`

// textbook is what most libraries do, done well: one INSERT, the app, one UPDATE, with prepared statements on a pool of 16 connections.
type textbook struct {
	pool      *pgxpool.Pool
	upstream  *url.URL
	transport *http.Transport
}

func newTextbook(ctx context.Context, dsn string, upstream *url.URL) (*textbook, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, errors.New("parse DSN")
	}
	config.MaxConns = 16
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return &textbook{pool: pool, upstream: upstream, transport: tuned()}, nil
}

// tuned is a transport that keeps its connections.
func tuned() *http.Transport {
	return &http.Transport{MaxIdleConns: 1024, MaxIdleConnsPerHost: 1024, DisableCompression: true}
}

func (t *textbook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "body", http.StatusBadRequest)
		return
	}
	client, key := r.Header.Get("X-Client-Id"), r.Header.Get("Idempotency-Key")
	sum := sha256.Sum256(body)
	tag, err := t.pool.Exec(r.Context(), "INSERT INTO textbook (client, key, fingerprint) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", client, key, sum[:])
	if err != nil {
		http.Error(w, "store", http.StatusServiceUnavailable)
		return
	}
	if tag.RowsAffected() == 0 {
		t.replay(w, r, client, key, sum[:])
		return
	}
	t.execute(w, r, client, key, body)
}

func (t *textbook) execute(w http.ResponseWriter, r *http.Request, client, key string, body []byte) {
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host, out.RequestURI = t.upstream.Scheme, t.upstream.Host, ""
	out.Body = io.NopCloser(bytes.NewReader(body))
	response, err := t.transport.RoundTrip(out)
	if err != nil {
		http.Error(w, "upstream", http.StatusBadGateway)
		return
	}
	defer func() { _ = response.Body.Close() }()
	got, err := io.ReadAll(response.Body)
	if err != nil {
		http.Error(w, "upstream", http.StatusBadGateway)
		return
	}
	header, _ := json.Marshal(response.Header)
	if _, err := t.pool.Exec(r.Context(), "UPDATE textbook SET status = $3, header = $4, body = $5 WHERE client = $1 AND key = $2", client, key, response.StatusCode, header, got); err != nil {
		http.Error(w, "store", http.StatusServiceUnavailable)
		return
	}
	answerWith(w, response.Header, response.StatusCode, got)
}

func (t *textbook) replay(w http.ResponseWriter, r *http.Request, client, key string, sum []byte) {
	var fingerprint, header, body []byte
	var status *int
	err := t.pool.QueryRow(r.Context(), "SELECT fingerprint, status, header, body FROM textbook WHERE client = $1 AND key = $2", client, key).
		Scan(&fingerprint, &status, &header, &body)
	switch {
	case errors.Is(err, pgx.ErrNoRows), err == nil && status == nil:
		http.Error(w, "in flight", http.StatusConflict)
	case err != nil:
		http.Error(w, "store", http.StatusServiceUnavailable)
	case !bytes.Equal(fingerprint, sum):
		http.Error(w, "mismatch", http.StatusUnprocessableEntity)
	default:
		recorded := http.Header{}
		if json.Unmarshal(header, &recorded) != nil {
			http.Error(w, "record", http.StatusInternalServerError)
			return
		}
		recorded.Set("Idempotent-Replayed", "true")
		answerWith(w, recorded, *status, body)
	}
}

func answerWith(w http.ResponseWriter, header http.Header, status int, body []byte) {
	for name, values := range header {
		w.Header()[name] = values
	}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// reverse is Go's own reverse proxy.
func reverse(upstream *url.URL) http.Handler {
	return &httputil.ReverseProxy{Transport: tuned(), Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(upstream); r.SetXForwarded() }}
}
