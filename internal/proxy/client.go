// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

const (
	// SharedClient is everyone's name under client type Shared. No header may hold it.
	SharedClient = "*"
	// authorizationPrefix is followed by the SHA-256 of the Authorization header, hexadecimal. No header may begin with it.
	authorizationPrefix = "authorization:"
	maxClient           = 512
)

// identity says who a request is from.
type identity struct {
	proxyconfig.Client
	trusted []netip.Prefix
	tokens  *tokens // when Type is JWT
}

// newIdentity takes over the keys of old, which may be nil, where they are published at the same place.
func newIdentity(c proxyconfig.Client, now func() time.Time, old *identity) *identity {
	id := &identity{Client: c}
	if c.JWT != nil {
		id.tokens = &tokens{JWT: *c.JWT, now: now}
		if old != nil && old.tokens != nil && old.tokens.JWKSURI == c.JWT.JWKSURI {
			id.tokens.keys = old.tokens.keys
		} else {
			id.tokens.keys = newKeySet(c.JWT.JWKSURI, now)
		}
	}
	for _, cidr := range c.TrustedCIDRs {
		id.trusted = append(id.trusted, netip.MustParsePrefix(cidr).Masked()) // proxyconfig.Validate parsed it already
	}
	return id
}

// strip takes from a request what only the sidecar, or only a trusted peer, may say, so that neither this process nor the app believes it.
func (id *identity) strip(r *http.Request) {
	r.Header.Del(headerReservation)
	r.Header.Del(headerSeed)
	if id.Type == "Header" && len(id.trusted) > 0 && !id.trusts(r.RemoteAddr) {
		r.Header.Del(id.Header)
	}
	for name := range r.Header {
		// Under CGI and what descends from it, X_Client_Id is X-Client-Id: https://www.rfc-editor.org/rfc/rfc3875#section-4.1.18
		if strings.Contains(name, "_") && id.reserves(strings.ReplaceAll(name, "_", "-")) {
			delete(r.Header, name)
		}
	}
}

// reserves is for the names that no look-alike may stand for.
func (id *identity) reserves(name string) bool {
	return strings.EqualFold(name, headerReservation) || strings.EqualFold(name, headerSeed) || id.Type == "Header" && strings.EqualFold(name, id.Header)
}

func (id *identity) trusts(peer string) bool {
	address, err := netip.ParseAddrPort(peer)
	if err != nil {
		return false
	}
	for _, prefix := range id.trusted {
		if prefix.Contains(address.Addr().Unmap().WithZone("")) {
			return true
		}
	}
	return false
}

// of is the client of r; errNoClient when r does not say, or says it in more than one way.
func (id *identity) of(r *http.Request) (string, error) {
	switch id.Type {
	case "Shared":
		return SharedClient, nil
	case "JWT":
		return id.tokens.of(r)
	case "Authorization":
		values := r.Header["Authorization"]
		if len(values) != 1 || values[0] == "" {
			return "", &refusal{err: fmt.Errorf("%w: exactly one Authorization header is needed", errNoClient), challenge: "Bearer"}
		}
		sum := sha256.Sum256([]byte(values[0]))
		return authorizationPrefix + hex.EncodeToString(sum[:]), nil
	default:
		values := r.Header[id.Header]
		if len(values) != 1 || !validClient(values[0]) {
			challenge := fmt.Sprintf("IdempotencyClient header=%q", id.Header)
			return "", &refusal{err: fmt.Errorf("%w: exactly one %s header of 1 to %d printable bytes is needed", errNoClient, id.Header, maxClient), challenge: challenge}
		}
		return values[0], nil
	}
}

func validClient(name string) bool {
	if name == "" || len(name) > maxClient || name == SharedClient || strings.HasPrefix(name, authorizationPrefix) {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' })
}
