// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package redirect

import "errors"

// Apply fails: there are no such rules outside of Linux.
func Apply(Ports) error { return errors.New("redirect ports: this needs Linux") }
