// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore/keystoretest"
)

func TestConformance(t *testing.T) {
	keystoretest.Run(t, func(t *testing.T) keystoretest.Harness { return harness(t, nil) })
}

// TestConformanceOfBatches: a call in a batch is the same call.
func TestConformanceOfBatches(t *testing.T) {
	keystoretest.Run(t, func(t *testing.T) keystoretest.Harness { return ferried(t, 1) })
}

// TestBatchesBesideCalls: sidecars that send batches, and such that do not, as during an upgrade.
func TestBatchesBesideCalls(t *testing.T) {
	keystoretest.Run(t, func(t *testing.T) keystoretest.Harness { return ferried(t, 2) },
		"RaceOneKey", "RaceTakeOver", "RaceMidnight", "RaceOwnership", "LostAnswers", "Model")
}

// TestIdleStoreKeepsNoConnection: whatever the DSN asks for, none is kept that was not used for a minute.
func TestIdleStoreKeepsNoConnection(t *testing.T) {
	d := newDatabase(t)
	for _, parameters := range []string{"", "pool_min_conns=3&pool_min_idle_conns=2&pool_max_conn_idle_time=1h&pool_health_check_period=1h&pool_max_conns=9"} {
		c := d.open(t, with(t, d.dsn, func(u *url.URL) { u.RawQuery += "&" + parameters })).Pool().Config()
		if c.MinConns != 0 || c.MinIdleConns != 0 || c.MaxConnIdleTime+c.HealthCheckPeriod > time.Minute || c.MaxConns != 4 {
			t.Errorf("%s: at least %d and %d idle, %v and %v, at most %d connections; want none after a minute, and 4", parameters,
				c.MinConns, c.MinIdleConns, c.MaxConnIdleTime, c.HealthCheckPeriod, c.MaxConns)
		}
	}
}
