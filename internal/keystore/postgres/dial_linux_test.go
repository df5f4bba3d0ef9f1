// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// TestKernelGivesUpWithTheCall: what a call has sent, and nobody has acknowledged, is not sent much longer than the call may last.
func TestKernelGivesUpWithTheCall(t *testing.T) {
	d := newDatabase(t)
	conn, err := d.open(t, d.dsn).Pool().Acquire(t.Context())
	d.must(err)
	defer conn.Release()
	raw, err := conn.Conn().PgConn().Conn().(*net.TCPConn).SyscallConn()
	d.must(err)
	var got int
	d.must(raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }))
	d.must(err)
	if got != 30_000 {
		t.Errorf("TCP_USER_TIMEOUT is %d ms, and the store's timeout 30 s", got)
	}
}
