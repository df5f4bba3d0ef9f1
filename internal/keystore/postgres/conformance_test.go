// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"testing"

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
