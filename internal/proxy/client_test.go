// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

func TestClient(t *testing.T) {
	header := proxyconfig.Client{Type: "Header", Header: "X-Client-Id"}
	trusted := proxyconfig.Client{Type: "Header", Header: "X-Client-Id", TrustedCIDRs: []string{"10.0.0.0/8", "fd00::/8"}}
	authorization := proxyconfig.Client{Type: "Authorization"}
	shared := proxyconfig.Client{Type: "Shared"}
	long := strings.Repeat("a", maxClient)
	for _, row := range []struct {
		config proxyconfig.Client
		peer   string
		header http.Header
		client string
		reason string
	}{
		{header, "192.0.2.1:1", http.Header{"X-Client-Id": {"alice"}}, "alice", "anyone may say who they are"},
		{header, "192.0.2.1:1", http.Header{}, "", "nobody says"},
		{header, "192.0.2.1:1", http.Header{"X-Client-Id": {""}}, "", "an empty name"},
		{header, "192.0.2.1:1", http.Header{"X-Client-Id": {"alice", "bob"}}, "", "two names"},
		{header, "192.0.2.1:1", http.Header{"X-Client-Id": {long}}, long, "as long as it may be"},
		{header, "192.0.2.1:1", http.Header{"X-Client-Id": {long + "a"}}, "", "one too long"},
		{header, "192.0.2.1:1", http.Header{"X-Client-Id": {"a\tb"}}, "", "a control character"},
		{header, "192.0.2.1:1", http.Header{"X-Client-Id": {"*"}}, "", "the name of everyone"},
		{header, "192.0.2.1:1", http.Header{"X-Client-Id": {"authorization:00"}}, "", "the name of somebody else's token"},
		{trusted, "10.1.2.3:1", http.Header{"X-Client-Id": {"alice"}}, "alice", "a trusted peer"},
		{trusted, "[::ffff:10.1.2.3]:1", http.Header{"X-Client-Id": {"alice"}}, "alice", "the same peer on a dual-stack socket"},
		{trusted, "[fd00::1%eth0]:1", http.Header{"X-Client-Id": {"alice"}}, "alice", "a zone is no part of the range"},
		{trusted, "192.0.2.1:1", http.Header{"X-Client-Id": {"alice"}}, "", "any other peer"},
		{trusted, "@", http.Header{"X-Client-Id": {"alice"}}, "", "no address"},
		{authorization, "192.0.2.1:1", http.Header{"Authorization": {"Bearer 1"}}, "authorization:a2bf93e6154b6e38ab3d3cd4158a80c6178b9ed5a79b4c5f6c7c0a9a2a3b6f53", "a hash"},
		{authorization, "192.0.2.1:1", http.Header{}, "", "no token"},
		{authorization, "192.0.2.1:1", http.Header{"Authorization": {"Bearer 1", "Bearer 2"}}, "", "two tokens"},
		{shared, "192.0.2.1:1", http.Header{}, "*", "everyone"},
	} {
		id := newIdentity(row.config, time.Now, nil)
		r := &http.Request{RemoteAddr: row.peer, Header: row.header}
		id.strip(r)
		client, err := id.of(r)
		if row.config.Type == "Authorization" && row.client != "" {
			if !strings.HasPrefix(client, authorizationPrefix) || len(client) != len(row.client) || strings.Contains(client, "Bearer") {
				t.Errorf("got %q: %s", client, row.reason)
			}
			continue
		}
		if client != row.client || (row.client == "") != errors.Is(err, errNoClient) {
			t.Errorf("%v from %s: got %.40q %v: %s", row.header, row.peer, client, err, row.reason)
		}
	}
}

func TestLookalikesAreDropped(t *testing.T) {
	id := newIdentity(proxyconfig.Client{Type: "Header", Header: "X-Client-Id"}, time.Now, nil)
	r := &http.Request{Header: http.Header{
		"X_client_id": {"bob"}, "X_Client-Id": {"bob"}, "Idempotency_reservation": {"1"}, "Idempotency-Seed": {"1"}, "IDEMPOTENCY_SEED": {"1"}, "X-Client-Id": {"alice"}, "X_other": {"1"},
	}}
	id.strip(r)
	if len(r.Header) != 2 || r.Header["X_other"] == nil || r.Header["X-Client-Id"][0] != "alice" {
		t.Errorf("left %v", r.Header)
	}
}

func TestUntrustedIdentityDoesNotReachTheApp(t *testing.T) {
	seen := make(chan http.Header, 1)
	r := start(t, func(s *setup) {
		s.config.Client.TrustedCIDRs = []string{"10.0.0.0/8"}
		s.app = func(_ http.ResponseWriter, req *http.Request) { seen <- req.Header }
	})
	_, err := r.try("GET", "/", "", "")
	must(t, err)
	if got := <-seen; got.Get("X-Client-Id") != "" {
		t.Errorf("the app believes %q", got.Get("X-Client-Id"))
	}
	want(t, r.post("k", `{}`), 401, "client-unidentified", false)
}
