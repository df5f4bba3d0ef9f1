// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"testing"

	"github.com/idempotency-dev/operator/internal/keystore/keystoretest"
)

func TestConformance(t *testing.T) {
	keystoretest.Run(t, func(t *testing.T) keystoretest.Harness { return harness(t, nil) })
}
