// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"iter"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

// hopByHop is for the fields that end at the next hop: https://www.rfc-editor.org/rfc/rfc9110#section-7.6.1
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Http2-Settings", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// endToEnd are the fields of header but for those that end here, its own nominations in Connection included. Their values stay header's.
func endToEnd(header http.Header) iter.Seq2[string, []string] {
	return func(yield func(string, []string) bool) {
		var ending []string
		if len(header["Connection"]) > 0 {
			ending = slices.Collect(nominated(header))
		}
		for name, values := range header {
			if !hopByHop(name) && !slices.Contains(ending, name) && !yield(name, values) {
				return
			}
		}
	}
}

// nominated are the canonical names of the fields that Connection says end here.
func nominated(header http.Header) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, line := range header["Connection"] {
			for name := range strings.SplitSeq(line, ",") {
				name = textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name))
				if name != "" && !yield(name) {
					return
				}
			}
		}
	}
}

// checkConnection refuses a request whose Connection names what the chain goes by: the app would get another request than the one with that key.
func (x *exchange) checkConnection() error {
	for name := range nominated(x.r.Header) {
		switch {
		case slices.Contains(x.route.keyFields(), name), name == x.generation.identity.Header, slices.Contains(x.route.FingerprintHeaders, name), overridesMethod(name),
			name == "Authorization", strings.HasPrefix(name, "Content-"):
			return errConnection
		}
	}
	return nil
}

// recorded is what of an answer's header is kept for replays: what describes the content, and what the route adds. Everything else speaks of one
// exchange or one caller.
func (rt *route) recorded(header http.Header) http.Header {
	kept := http.Header{}
	for name, values := range endToEnd(header) {
		if rt.records(name) {
			kept[name] = values
		}
	}
	return kept
}

func (rt *route) records(name string) bool {
	switch name {
	case "Content-Length", "Date", "Set-Cookie", "Set-Cookie2", headerReplayed, headerStatus:
		return false
	case "Location", "Etag", "Link", "Vary", "Retry-After", "Grpc-Status", "Grpc-Message":
		return true
	}
	for _, prefix := range []string{"Access-Control-", "Ratelimit", "X-Ratelimit"} {
		if strings.HasPrefix(name, prefix) {
			return false
		}
	}
	return strings.HasPrefix(name, "Content-") || rt.recordable[name]
}

// stored reports whether an answer with this status is recorded. The others give the key back: a retry asks the app again.
func (rt *route) stored(status int) bool {
	if rule, ok := rt.StatusRules[status]; ok {
		return rule == "Store"
	}
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status >= 200 && status <= 499
}

// bodyless are the answers that have no body, whatever their header says: https://www.rfc-editor.org/rfc/rfc9110#section-6.4.1
func bodyless(status int) bool {
	return status == http.StatusNoContent || status == http.StatusNotModified || status >= 100 && status < 200
}
