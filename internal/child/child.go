// SPDX-License-Identifier: Apache-2.0

// Package child runs programs that end with the program that started them.
package child

import (
	"os"
	"os/exec"
	"runtime"
)

// Spawn starts cmd and returns a channel that is closed at its end. cmd.SysProcAttr should come from Attributes.
// The thread that starts a process stands for its parent in PR_SET_PDEATHSIG, so one thread is kept for as long as the process lives:
// https://github.com/golang/go/issues/27505
func Spawn(cmd *exec.Cmd) (*os.Process, <-chan struct{}, error) {
	started, exited := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the program's log tells more
			close(exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, nil, err
	}
	return cmd.Process, exited, nil
}
