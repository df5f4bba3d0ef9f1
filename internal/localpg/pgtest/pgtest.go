// SPDX-License-Identifier: Apache-2.0

// Package pgtest gives tests a real PostgreSQL server and a fresh database each.
package pgtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-dev/operator/internal/localpg"
)

// server is the environment variable that holds the superuser's DSN while the tests of a package run.
const server = "IDEMPOTENCY_TEST_SERVER"

// Main is the body of a package's TestMain: it starts one server for all tests of the package.
// The environment variable POSTGRES_VERSION picks the major version.
func Main(m *testing.M) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute) // it may have to be installed first
	defer cancel()
	s, err := localpg.Start(ctx, localpg.Options{
		Version:  os.Getenv("POSTGRES_VERSION"),
		Settings: map[string]string{"max_connections": "300"},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		os.Exit(1)
	}
	defer s.Stop()
	if err := os.Setenv(server, s.DSN("postgres")); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		os.Exit(1)
	}
	m.Run()
}

// NewDatabase makes an empty database that the test's end removes, and returns the superuser's DSN for it.
func NewDatabase(t testing.TB) string {
	t.Helper()
	name := "t_" + strings.ToLower(rand.Text())
	Exec(t, Server(t), "CREATE DATABASE "+name)
	t.Cleanup(func() { Exec(t, Server(t), "DROP DATABASE "+name+" WITH (FORCE)") })
	u, err := url.Parse(Server(t))
	if err != nil {
		t.Fatal("parse server's DSN")
	}
	u.Path = "/" + name
	return u.String()
}

// Server is the superuser's DSN for the server's own database.
func Server(t testing.TB) string {
	t.Helper()
	dsn := os.Getenv(server)
	if dsn == "" {
		t.Fatal("no server: TestMain has to call pgtest.Main")
	}
	return dsn
}

// Exec runs SQL, one or more statements without arguments or one statement with them, on a connection of its own.
func Exec(t testing.TB, dsn, sql string, args ...any) {
	t.Helper()
	conn := Connect(t, dsn)
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("execute %.80q: %v", sql, err)
	}
}

// Connect opens a connection that the caller closes.
func Connect(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatalf("connect to the test's server: %v", err)
	}
	return conn
}
