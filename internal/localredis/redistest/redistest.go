// SPDX-License-Identifier: Apache-2.0

// Package redistest gives tests real Redis servers, which end with the test.
package redistest

import (
	"testing"

	"github.com/idempotency-dev/operator/internal/localredis"
)

// Start starts a server.
func Start(t testing.TB, o localredis.Options) *localredis.Server {
	t.Helper()
	s, err := localredis.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// StartCluster starts a cluster.
func StartCluster(t testing.TB, o localredis.ClusterOptions) *localredis.Cluster {
	t.Helper()
	c, err := localredis.StartCluster(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return c
}
