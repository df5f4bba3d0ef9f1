// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/json"
	"net/http"
)

// wellKnownPath is served by the sidecar itself.
const wellKnownPath = "/.well-known/idempotency"

func (g *generation) serveWellKnown(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(g.config.Routes)
}
