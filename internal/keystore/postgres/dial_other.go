// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package postgres

import (
	"syscall"
	"time"
)

// sendFor leaves to the kernel how long it goes on sending.
func sendFor(time.Duration) func(network, address string, c syscall.RawConn) error { return nil }
