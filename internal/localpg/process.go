// SPDX-License-Identifier: Apache-2.0

package localpg

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"strconv"
	"syscall"
)

// account is the user that the server runs as; nil: the caller.
type account struct{ uid, gid int }

// unprivileged finds an account for the server, which refuses to run as root.
func unprivileged() (*account, error) {
	if os.Getuid() != 0 {
		return nil, nil // nil is the caller
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.Atoi(u.Uid)
		gid, gidErr := strconv.Atoi(u.Gid)
		if uidErr == nil && gidErr == nil {
			return &account{uid: uid, gid: gid}, nil
		}
	}
	return nil, fmt.Errorf("find account for the server: neither postgres nor nobody exists")
}

// own gives path to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	if err := os.Chown(path, a.uid, a.gid); err != nil {
		return fmt.Errorf("give folder to the server: %w", err)
	}
	return nil
}

// attributes run a program as the account, and end it with its parent.
func (a *account) attributes() *syscall.SysProcAttr {
	attr := endWithParent()
	if a != nil {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}

// spawn starts cmd and returns a channel that is closed at its end.
// The thread that starts a process stands for its parent in PR_SET_PDEATHSIG, so one thread is kept for as long as the process lives:
// https://github.com/golang/go/issues/27505
func spawn(cmd *exec.Cmd) (*os.Process, chan struct{}, error) {
	started, exited := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the log tells more
			close(exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, nil, err
	}
	return cmd.Process, exited, nil
}
