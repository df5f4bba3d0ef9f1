// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package child

import "syscall"

// Attributes of a process of a group of its own: only Linux can end it with its parent.
func Attributes(syscall.Signal) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
