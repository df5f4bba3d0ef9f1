// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-dev/operator/internal/localpg"
)

// database is a PostgreSQL server on this machine that pods can reach, with a role for the operator and one for the sidecars.
type database struct {
	dir    string
	host   string
	port   int // 0 until the first start; kept over restarts
	server *localpg.Server
}

func startDatabase(ctx context.Context) (*database, error) {
	host := os.Getenv("E2E_HOST_ADDRESS")
	if host == "" {
		host = "10.88.0.1"
	}
	dir, err := os.MkdirTemp("", "idempotency-e2e-postgres-")
	if err != nil {
		return nil, err
	}
	d := &database{dir: dir, host: host}
	if err := d.start(ctx); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	for _, statement := range []string{
		`CREATE ROLE idem_operator LOGIN PASSWORD 'operator-secret'`,
		`CREATE ROLE idem_sidecar LOGIN PASSWORD 'sidecar-secret'`,
	} {
		if err := d.exec(ctx, "postgres", statement); err != nil {
			d.stop()
			return nil, err
		}
	}
	return d, nil
}

// start starts the server, on the port that it had before.
func (d *database) start(ctx context.Context) error {
	server, err := localpg.Start(ctx, localpg.Options{Dir: d.dir, Listen: d.host, Port: d.port})
	if err != nil {
		return fmt.Errorf("start PostgreSQL on %s for the pods (E2E_HOST_ADDRESS): %w", d.host, err)
	}
	address, err := netip.ParseAddrPort(server.Addr())
	if err != nil {
		return err
	}
	d.server, d.port = server, int(address.Port())
	return nil
}

// pause stops the server and keeps its data.
func (d *database) pause() { d.server.Stop() }

func (d *database) stop() {
	d.server.Stop()
	os.RemoveAll(d.dir)
}

// dsn is the connection string of one of the two roles.
func (d *database) dsn(name, role string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(role, passwords[role]), Host: d.server.Addr(), Path: "/" + name, RawQuery: "sslmode=disable"}
	return u.String()
}

var passwords = map[string]string{"idem_operator": "operator-secret", "idem_sidecar": "sidecar-secret"}

// createDatabase makes the database, owned by the operator's role.
func (d *database) createDatabase(ctx context.Context, name string) error {
	return d.exec(ctx, "postgres", "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" OWNER idem_operator")
}

func (d *database) exec(ctx context.Context, name, statement string, args ...any) error {
	return d.as(ctx, d.server.DSN(name), func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, statement, args...)
		return err
	})
}

func (d *database) as(ctx context.Context, dsn string, use func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return use(conn)
}

// now is the key store's clock.
func (d *database) now(ctx context.Context, name string) (now time.Time, err error) {
	err = d.as(ctx, d.server.DSN(name), func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT idempotency.now_()").Scan(&now)
	})
	return now.UTC(), err
}

// shiftClock moves the key store's clock ahead of the machine's.
func (d *database) shiftClock(ctx context.Context, name string, ahead time.Duration) error {
	return d.exec(ctx, name, fmt.Sprintf(`CREATE OR REPLACE FUNCTION idempotency.now_() RETURNS timestamptz LANGUAGE sql VOLATILE AS
		$$ SELECT pg_catalog.clock_timestamp() + interval '%d microseconds' $$`, ahead.Microseconds()))
}

// partitions are the days of the attached partitions, as YYYYMMDD, sorted, by the catalog's bounds.
func (d *database) partitions(ctx context.Context, name string) (days []string, err error) {
	err = d.as(ctx, d.server.DSN(name), func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "SET timezone = 'UTC'"); err != nil {
			return err
		}
		rows, err := conn.Query(ctx, `
			SELECT replace(substring(pg_get_expr(c.relpartbound, c.oid) FROM 'FROM \(''(\d{4}-\d\d-\d\d) 00:00:00\+00'), '-', '')
			FROM idempotency.keyspaces k
			JOIN pg_class p ON p.relname = k.relation AND p.relnamespace = 'idempotency'::regnamespace
			JOIN pg_inherits i ON i.inhparent = p.oid
			JOIN pg_class c ON c.oid = i.inhrelid
			ORDER BY 1`)
		if err != nil {
			return err
		}
		days, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return days, err
}

// addExpiredPartition makes the partition of a past day, with entries whose window is over, and returns the day as YYYYMMDD.
func (d *database) addExpiredPartition(ctx context.Context, name string, daysAgo int) (string, error) {
	var relation string
	at := time.Now().UTC().Truncate(day).Add(-time.Duration(daysAgo) * day)
	err := d.as(ctx, d.dsn(name, "idem_operator"), func(conn *pgx.Conn) error {
		if err := conn.QueryRow(ctx, "SELECT relation FROM idempotency.keyspaces").Scan(&relation); err != nil {
			return err
		}
		parent := pgx.Identifier{"idempotency", relation}.Sanitize()
		child := pgx.Identifier{"idempotency", relation + "_p" + at.Format("20060102")}.Sanitize()
		from, to := at.Format("2006-01-02 15:04:05+00"), at.Add(day).Format("2006-01-02 15:04:05+00")
		_, err := conn.Exec(ctx, fmt.Sprintf(`
			CREATE TABLE %[1]s (LIKE %[2]s INCLUDING ALL, PRIMARY KEY (client, key), CHECK (bucket >= '%[3]s' AND bucket < '%[4]s'));
			INSERT INTO %[1]s (client, key, bucket, fingerprint, state, token, holder, seed, attempts, route, lifetime, reserved_at, expires_at, status)
			SELECT 'old', n::text, '%[3]s', '\x00', 2, gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 1, 'create-payment', '1 day', '%[3]s', '%[4]s', 201
			FROM generate_series(1, 1000) n;
			ALTER TABLE %[2]s ATTACH PARTITION %[1]s FOR VALUES FROM ('%[3]s') TO ('%[4]s')`, child, parent, from, to))
		return err
	})
	return at.Format("20060102"), err
}

// absent checks that no table of that day is left, attached or not.
func (d *database) absent(ctx context.Context, name, day string) error {
	return d.as(ctx, d.server.DSN(name), func(conn *pgx.Conn) error {
		var left int
		if err := conn.QueryRow(ctx, "SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'p') AND relname LIKE '%' || $1", day).Scan(&left); err != nil {
			return err
		}
		if left != 0 {
			return fmt.Errorf("%d tables of %s are left", left, day)
		}
		return nil
	})
}

// entryIn checks that the one entry of key is in the bucket of the day of at.
func (d *database) entryIn(ctx context.Context, name, key string, at time.Time) error {
	return d.as(ctx, d.server.DSN(name), func(conn *pgx.Conn) error {
		var relation string
		if err := conn.QueryRow(ctx, "SELECT relation FROM idempotency.keyspaces").Scan(&relation); err != nil {
			return err
		}
		rows, err := conn.Query(ctx, "SELECT bucket FROM "+pgx.Identifier{"idempotency", relation}.Sanitize()+" WHERE key = $1", key)
		if err != nil {
			return err
		}
		buckets, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
		if err != nil {
			return err
		}
		if want := at.UTC().Truncate(day); len(buckets) != 1 || !buckets[0].Equal(want) {
			return fmt.Errorf("entry %s is in the buckets %v, not in that of %s alone", key, buckets, want)
		}
		return nil
	})
}
