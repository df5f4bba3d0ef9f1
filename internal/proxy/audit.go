// SPDX-License-Identifier: Apache-2.0

package proxy

// audit is not written yet: the request passes.
func (x *exchange) audit() { x.proxy.forward.ServeHTTP(x.w, x.r) }
