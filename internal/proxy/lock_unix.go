// SPDX-License-Identifier: Apache-2.0

//go:build unix

package proxy

import (
	"os"
	"syscall"
)

// lockFile fails when another process has the file locked. The lock ends with the process.
func lockFile(file *os.File) error {
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}
