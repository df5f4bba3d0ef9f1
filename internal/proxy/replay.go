// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"strconv"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// replay answers with what was recorded, to a caller who may have it. It is the only way out for what another request has brought about.
func (x *exchange) replay(answer *keystore.Answer) {
	if answer == nil {
		x.refuse(errStoreUnavailable)
		return
	}
	if err := x.authorize(); err != nil {
		x.refuse(err)
		return
	}
	if answer.Tombstone == keystore.Referenced {
		x.rebuild(answer)
		return
	}
	if answer.Tombstone != "" {
		x.refuse(&refusal{err: errNotReplayable, originalStatus: answer.Status})
		return
	}
	header := x.w.Header()
	trailers := false
	for name, values := range answer.Header {
		header[name] = values
		trailers = trailers || len(name) > len(http.TrailerPrefix) && name[:len(http.TrailerPrefix)] == http.TrailerPrefix
	}
	header.Set(headerReplayed, "true")
	if !trailers && !bodyless(answer.Status) {
		header.Set("Content-Length", strconv.Itoa(len(answer.Body)))
	}
	x.hurryClient()
	x.w.WriteHeader(answer.Status)
	if !bodyless(answer.Status) {
		_, _ = x.w.Write(answer.Body) // a client that is gone asks again
	}
	x.count("replayed")
}
