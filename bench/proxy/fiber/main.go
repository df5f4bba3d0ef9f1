// SPDX-License-Identifier: Apache-2.0

// Command fiber is gofiber's idempotency middleware in front of an app, on a storage with the statements of gofiber/storage/postgres.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/idempotency"
	"github.com/gofiber/fiber/v3/middleware/proxy"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/valyala/fasthttp"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, "fiber:", err)
		os.Exit(1)
	}
}

func run(listen, admin, upstream, dsn string) error {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return errors.New("parse DSN")
	}
	config.MaxConns = 16
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS fiber_storage (k VARCHAR(64) PRIMARY KEY NOT NULL DEFAULT '', v BYTEA NOT NULL, e BIGINT NOT NULL DEFAULT '0')"); err != nil {
		return err
	}
	go func() {
		_ = http.ListenAndServe(admin, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			var stats runtime.MemStats
			runtime.ReadMemStats(&stats)
			fmt.Fprint(w, stats.Mallocs)
		}))
	}()
	client := &fasthttp.Client{MaxConnsPerHost: 1024, NoDefaultUserAgentHeader: true}
	app := fiber.New()
	app.Use(idempotency.New(idempotency.Config{
		KeyHeader: "Idempotency-Key", KeyHeaderValidate: func(string) error { return nil }, Storage: &storage{pool}, Lifetime: 24 * time.Hour,
	}))
	app.Use(func(c fiber.Ctx) error { return proxy.Do(c, upstream+c.OriginalURL(), client) })
	return app.Listen(listen, fiber.ListenConfig{DisableStartupMessage: true})
}

// storage has the statements of gofiber/storage/postgres.
type storage struct{ pool *pgxpool.Pool }

func (s *storage) GetWithContext(ctx context.Context, key string) ([]byte, error) {
	var value []byte
	var expires int64
	err := s.pool.QueryRow(ctx, "SELECT v, e FROM fiber_storage WHERE k = $1", key).Scan(&value, &expires)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && expires != 0 && expires <= time.Now().Unix() {
		return nil, nil
	}
	return value, err
}

func (s *storage) SetWithContext(ctx context.Context, key string, value []byte, expires time.Duration) error {
	_, err := s.pool.Exec(ctx, "INSERT INTO fiber_storage (k, v, e) VALUES ($1, $2, $3) ON CONFLICT (k) DO UPDATE SET v = $4, e = $5",
		key, value, time.Now().Add(expires).Unix(), value, time.Now().Add(expires).Unix())
	return err
}

func (s *storage) DeleteWithContext(ctx context.Context, key string) error {
	_, err := s.pool.Exec(ctx, "DELETE FROM fiber_storage WHERE k = $1", key)
	return err
}

func (s *storage) ResetWithContext(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, "TRUNCATE fiber_storage")
	return err
}

func (s *storage) Get(key string) ([]byte, error) { return s.GetWithContext(context.Background(), key) }
func (s *storage) Set(key string, value []byte, expires time.Duration) error {
	return s.SetWithContext(context.Background(), key, value, expires)
}
func (s *storage) Delete(key string) error { return s.DeleteWithContext(context.Background(), key) }
func (s *storage) Reset() error            { return s.ResetWithContext(context.Background()) }
func (s *storage) Close() error            { s.pool.Close(); return nil }
