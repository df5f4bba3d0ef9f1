// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/textproto"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// tokenForm is a field name: https://www.rfc-editor.org/rfc/rfc9110#section-5.6.2.
var tokenForm = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}$")

// validateHeader refuses what is no field name, and names for which unfit, given the canonical form, has a reason.
func validateHeader(at *field.Path, name string, unfit func(name string) string) field.ErrorList {
	if !tokenForm.MatchString(name) {
		return field.ErrorList{field.Invalid(at, name, "write the name of an HTTP header, such as X-Client-Id")}
	}
	if reason := unfit(textproto.CanonicalMIMEHeaderKey(name)); reason != "" {
		return field.ErrorList{field.Invalid(at, name, reason)}
	}
	return nil
}

// unfitForIdentity says why a request header can hold neither a key nor a client.
func unfitForIdentity(name string) string {
	switch name {
	case "Authorization", "Proxy-Authorization", "Cookie":
		return "its value is a secret and would be stored: name another header (for the client there is authorization: {}, which stores a hash)"
	case "Host":
		return "this header says where the request goes, not from whom it is or what for: name another"
	}
	return unfitForRequest(name)
}

// unfitForRequest says why a request header does not say the same on every attempt, or never reaches the sidecar.
func unfitForRequest(name string) string {
	switch name {
	case "Content-Length", "Expect":
		return "this header describes the connection or the message, not the intention: name another"
	case "Idempotency-Reservation", "Idempotency-Seed":
		return "the sidecar sets this header itself and drops what clients send: name another"
	}
	if hopByHop(name) {
		return "this header ends at the next hop: name another"
	}
	return ""
}

// UnfitForReplay says why a response header, given its canonical name, must never be recorded: it speaks of one exchange or one caller, not of the
// effect. Empty: it may be.
func UnfitForReplay(name string) string {
	switch name {
	case "Set-Cookie", "Set-Cookie2":
		return "a replay would hand out somebody's session: remove it"
	case "Content-Length", "Date", "Age", "Idempotent-Replayed":
		return "a replay has its own: remove it"
	}
	if hopByHop(name) {
		return "this header ends at the next hop: remove it"
	}
	for _, prefix := range []string{"Access-Control-", "Ratelimit", "X-Ratelimit"} {
		if strings.HasPrefix(name, prefix) {
			return "this header speaks of one request and would be wrong in a replay: remove it"
		}
	}
	return ""
}

// hopByHop is https://www.rfc-editor.org/rfc/rfc9110#section-7.6.1 and what is hop-by-hop by use.
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}
