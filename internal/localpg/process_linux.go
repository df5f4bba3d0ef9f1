// SPDX-License-Identifier: Apache-2.0

package localpg

import "syscall"

func endWithParent() *syscall.SysProcAttr {
	// SIGQUIT is the "immediate" shutdown. A group of its own keeps the terminal's Ctrl-C for the parent, which stops the server itself.
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT, Setpgid: true}
}
