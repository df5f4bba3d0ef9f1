// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/json"
	"net/http"

	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// ServeHTTP tells the operator which configuration is in use.
func (w *watcher) ServeHTTP(out http.ResponseWriter, _ *http.Request) {
	out.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(out).Encode(w.running.Load()) // who asked has gone
}

// uses says that the document last looked at is in use.
func (w *watcher) uses() {
	w.running.Store(&proxyconfig.Running{Revision: proxyconfig.Revision(w.document)})
}

// refuses says that it is not, and that what was in use still is.
func (w *watcher) refuses() {
	w.running.Store(&proxyconfig.Running{Revision: w.running.Load().Revision, Refused: proxyconfig.Revision(w.document)})
}
