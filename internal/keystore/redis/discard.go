// SPDX-License-Identifier: Apache-2.0

package redis

import "context"

// discard is the driver's log.
type discard struct{}

func (discard) Printf(context.Context, string, ...any) {}
