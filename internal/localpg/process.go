// SPDX-License-Identifier: Apache-2.0

package localpg

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"

	"github.com/idempotency-dev/operator/internal/child"
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
	attr := child.Attributes(syscall.SIGQUIT) // the "immediate" shutdown
	if a != nil {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}
