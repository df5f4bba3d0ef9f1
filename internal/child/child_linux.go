// SPDX-License-Identifier: Apache-2.0

package child

import "syscall"

// Attributes of a process that gets sig when its parent ends. A group of its own keeps the terminal's Ctrl-C for the parent, which stops it itself.
func Attributes(sig syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: sig, Setpgid: true}
}
