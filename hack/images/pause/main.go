// SPDX-License-Identifier: Apache-2.0

// Command pause holds a pod's namespaces open until it is told to stop. As process 1 of a pod that shares its
// process namespace it also inherits orphans, and reaps them.
package main

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		reap()
	}
}

// reap collects every child that has ended: signals of one kind merge, so one SIGCHLD may stand for several.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if pid <= 0 || err != nil && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}
