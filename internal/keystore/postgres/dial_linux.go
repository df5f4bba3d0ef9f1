// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sendFor lets the kernel give up on a connection, closed or not, when what was sent has not been acknowledged for limit. It would otherwise go on for
// minutes, and a call could reach the server long after its caller has given up on it. Without the option it is as it would have been.
func sendFor(limit time.Duration) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.Milliseconds()))
		})
	}
}
