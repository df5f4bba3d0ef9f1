// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package localpg

import "syscall"

func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
