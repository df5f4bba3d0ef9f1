// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// issuer publishes keys on a socket and signs with them.
type issuer struct {
	*httptest.Server
	t *testing.T

	mu      sync.Mutex
	keys    jose.JSONWebKeySet
	down    bool
	asked   int
	private map[string]crypto.Signer
}

func newIssuer(t *testing.T) *issuer {
	i := &issuer{t: t, private: map[string]crypto.Signer{}}
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.asked++
		if i.down {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(i.keys)
	}))
	t.Cleanup(i.Close)
	return i
}

func must1[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		must(t, err)
		return value
	}
}

// publish adds the public half of key under that name.
func (i *issuer) publish(kid, algorithm string, key crypto.Signer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.private[kid] = key
	i.keys.Keys = append(i.keys.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: kid, Algorithm: algorithm, Use: "sig"})
}

func (i *issuer) goDown(down bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.down = down
}

func (i *issuer) times() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.asked
}

// sign is a bearer token with these claims over good ones; nil takes one away.
func (i *issuer) sign(algorithm jose.SignatureAlgorithm, kid string, key any, change map[string]any) string {
	i.t.Helper()
	if key == nil {
		key = i.private[kid]
	}
	options := (&jose.SignerOptions{}).WithType("JWT")
	if kid != "" {
		options = options.WithHeader("kid", kid)
	}
	signer := must1[jose.Signer](i.t)(jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, options))
	claims := map[string]any{"iss": "https://issuer.example", "aud": []string{"other", "shop"}, "sub": "alice", "exp": time.Now().Add(time.Hour).Unix(), "tenant": "t1"}
	for name, value := range change {
		if claims[name] = value; value == nil {
			delete(claims, name)
		}
	}
	return "Bearer " + must1[string](i.t)(jwt.Signed(signer).Claims(claims).Serialize())
}

func (i *issuer) config(claim string) proxyconfig.Client {
	return proxyconfig.Client{Type: "JWT", JWT: &proxyconfig.JWT{
		Issuer: "https://issuer.example", Audiences: []string{"admin", "shop"}, JWKSURI: i.URL, Claim: claim,
	}}
}

func TestBearerTokens(t *testing.T) {
	i := newIssuer(t)
	first := must1[*rsa.PrivateKey](t)(rsa.GenerateKey(rand.Reader, 2048))
	curve := must1[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	stranger := must1[*rsa.PrivateKey](t)(rsa.GenerateKey(rand.Reader, 2048))
	i.publish("rsa", "", first)
	i.publish("pinned", "RS256", first)
	i.publish("ec", "ES256", curve)
	i.publish("ed", "EdDSA", edwards)
	i.keys.Keys = append(i.keys.Keys, jose.JSONWebKey{Key: stranger.Public(), KeyID: "enc", Use: "enc"}, jose.JSONWebKey{Key: []byte("0123456789abcdef0123456789abcdef"), KeyID: "oct"})
	public := must1[[]byte](t)(x509.MarshalPKIXPublicKey(first.Public()))
	now := time.Now()
	good := i.sign(jose.RS256, "rsa", nil, nil)
	head, rest, _ := strings.Cut(good, ".")
	body, signature, _ := strings.Cut(rest, ".")
	for _, row := range []struct {
		reason, token, claim, client string
	}{
		{"RSA", good, "sub", "alice"},
		{"the scheme in lower case", "b" + good[1:], "sub", "alice"},
		{"RSA-PSS", i.sign(jose.PS256, "rsa", nil, nil), "sub", "alice"},
		{"a curve", i.sign(jose.ES256, "ec", nil, nil), "sub", "alice"},
		{"Ed25519", i.sign(jose.EdDSA, "ed", nil, nil), "sub", "alice"},
		{"no key is named, and two may be meant", i.sign(jose.EdDSA, "", edwards, nil), "sub", ""}, // one is published for any algorithm
		{"another claim", good, "tenant", "t1"},
		{"a claim that is not there", good, "email", ""},
		{"a claim that is no text", i.sign(jose.RS256, "rsa", nil, map[string]any{"sub": 7}), "sub", ""},
		{"an empty name", i.sign(jose.RS256, "rsa", nil, map[string]any{"sub": ""}), "sub", ""},
		{"the name of everyone", i.sign(jose.RS256, "rsa", nil, map[string]any{"sub": "*"}), "sub", ""},
		{"a name as long as it may be", i.sign(jose.RS256, "rsa", nil, map[string]any{"sub": strings.Repeat("a", maxClient)}), "sub", strings.Repeat("a", maxClient)},
		{"one too long", i.sign(jose.RS256, "rsa", nil, map[string]any{"sub": strings.Repeat("a", maxClient+1)}), "sub", ""},
		{"another issuer", i.sign(jose.RS256, "rsa", nil, map[string]any{"iss": "https://issuer.example/"}), "sub", ""},
		{"no issuer", i.sign(jose.RS256, "rsa", nil, map[string]any{"iss": nil}), "sub", ""},
		{"another audience", i.sign(jose.RS256, "rsa", nil, map[string]any{"aud": "shopping"}), "sub", ""},
		{"no audience", i.sign(jose.RS256, "rsa", nil, map[string]any{"aud": nil}), "sub", ""},
		{"expired, within the leeway", i.sign(jose.RS256, "rsa", nil, map[string]any{"exp": now.Add(-leeway / 2).Unix()}), "sub", "alice"},
		{"expired", i.sign(jose.RS256, "rsa", nil, map[string]any{"exp": now.Add(-leeway - time.Second).Unix()}), "sub", ""},
		{"never expires", i.sign(jose.RS256, "rsa", nil, map[string]any{"exp": nil}), "sub", ""},
		{"valid from now on, within the leeway", i.sign(jose.RS256, "rsa", nil, map[string]any{"nbf": now.Add(leeway / 2).Unix()}), "sub", "alice"},
		{"not valid yet", i.sign(jose.RS256, "rsa", nil, map[string]any{"nbf": now.Add(2 * leeway).Unix()}), "sub", ""},
		{"somebody else's signature", i.sign(jose.RS256, "rsa", stranger, nil), "sub", ""},
		{"an algorithm that the key is not for", i.sign(jose.PS256, "pinned", first, nil), "sub", ""},
		{"a key for something else", i.sign(jose.RS256, "enc", stranger, nil), "sub", ""},
		{"signed with the public key as a secret", i.sign(jose.HS256, "rsa", public, nil), "sub", ""},
		{"signed with a published secret", i.sign(jose.HS256, "oct", []byte("0123456789abcdef0123456789abcdef"), nil), "sub", ""},
		{"not signed", "Bearer eyJhbGciOiJub25lIn0." + body + ".", "sub", ""},
		{"its signature cut off", head + "." + body + ".", "sub", ""},
		{"other claims under the signature", head + "." + strings.Split(i.sign(jose.RS256, "rsa", stranger, map[string]any{"sub": "bob"}), ".")[1] + "." + signature, "sub", ""},
		{"no token", "", "sub", ""},
		{"another scheme", "Basic YWxpY2U6", "sub", ""},
		{"nonsense", "Bearer nonsense", "sub", ""},
	} {
		r := start(t, func(s *setup) { s.config.Client = i.config(row.claim) })
		r.client.DisableKeepAlives = true
		got := r.post("k", `{}`, "Authorization", row.token)
		if row.client == "" {
			want(t, got, 401, "client-unidentified", false)
			r.executions(0)
			challenge := got.Header.Get("WWW-Authenticate")
			if bearerIsThere := len(row.token) > 6 && strings.EqualFold(row.token[:6], "Bearer"); challenge != "Bearer" && !bearerIsThere || challenge != `Bearer error="invalid_token"` && bearerIsThere {
				t.Errorf("%s: challenge %q", row.reason, challenge)
			}
			continue
		}
		if got.Status != 201 || r.store.get(row.client, "k") == nil {
			t.Errorf("%s: got %d %q, and no entry of %q", row.reason, got.Status, got.Body, row.client)
		}
		if again := r.post("k", `{}`, "Authorization", i.sign(jose.RS256, "rsa", nil, map[string]any{"sub": row.client, "jti": "another token"})); row.claim == "sub" && !again.replayed() {
			t.Errorf("%s: another token of the same client gets %d %q", row.reason, again.Status, again.Body)
		}
	}
}

func TestTokenLength(t *testing.T) {
	for _, n := range []int{maxToken, maxToken + 1} {
		_, err := bearer([]string{"Bearer " + strings.Repeat("x", n)})
		if (err == nil) != (n <= maxToken) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if _, err := bearer([]string{"Bearer a", "Bearer b"}); err == nil {
		t.Error("two tokens are taken")
	}
}

// TestKeyRotation: new keys are found, unknown ones are not asked for again and again, and an issuer that is down takes nobody out for a day.
func TestKeyRotation(t *testing.T) {
	i := newIssuer(t)
	clock := &stepClock{}
	r := start(t, func(s *setup) { s.config.Client, s.now = i.config("sub"), clock.now })
	key := func() *ecdsa.PrivateKey {
		return must1[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	}
	n := 0
	post := func(kid string) reply {
		n++
		return r.post(strings.Repeat("k", n), `{}`, "Authorization", i.sign(jose.ES256, kid, nil, map[string]any{"exp": time.Now().Add(72 * time.Hour).Unix()}))
	}
	i.goDown(true)
	i.publish("1", "", key())
	want(t, post("1"), 503, "client-unverifiable", false) // the sidecar is up, and there are no keys yet
	i.goDown(false)
	want(t, post("1"), 503, "client-unverifiable", false)
	if got := i.times(); got != 1 {
		t.Errorf("asked %d times, want once", got)
	}
	clock.step(jwksInterval)
	want(t, post("1"), 201, "", false)

	i.publish("2", "", key())
	want(t, post("2"), 401, "client-unidentified", false) // too soon to ask
	clock.step(jwksInterval)
	want(t, post("2"), 201, "", false)
	asked := i.times()
	i.private["3"] = key()
	clock.step(jwksInterval)
	for range 5 {
		want(t, post("3"), 401, "client-unidentified", false)
	}
	if got := i.times() - asked; got != 1 {
		t.Errorf("asked %d times for an unknown key, want once", got)
	}

	r.proxy.Load(r.proxy.current.Load().config, nil, "") // a reload keeps the keys
	i.goDown(true)
	clock.step(jwksFresh)
	want(t, post("1"), 201, "", false)
	clock.step(jwksInterval)
	want(t, post("3"), 503, "client-unverifiable", false) // perhaps a new one
	clock.step(jwksStale - jwksFresh - 2*jwksInterval)
	want(t, post("1"), 201, "", false)
	clock.step(2 * jwksInterval)
	want(t, post("1"), 503, "client-unverifiable", false)
	i.goDown(false)
	clock.step(jwksInterval)
	want(t, post("1"), 201, "", false)
}

func TestTokenWithoutKeyName(t *testing.T) {
	i := newIssuer(t)
	key := must1[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	i.publish("only", "", key)
	r := start(t, func(s *setup) { s.config.Client = i.config("sub") })
	want(t, r.post("k", `{}`, "Authorization", i.sign(jose.ES256, "", key, nil)), 201, "", false)
}

// TestKeysAtTheBounds: so many keys, and one more; so strong, and weaker.
func TestKeysAtTheBounds(t *testing.T) {
	one := must1[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	for _, n := range []int{jwksKeys, jwksKeys + 1} {
		var set jose.JSONWebKeySet
		for range n {
			set.Keys = append(set.Keys, jose.JSONWebKey{Key: one.Public(), KeyID: "k"})
		}
		keys, err := parseKeys(must1[[]byte](t)(json.Marshal(set)))
		if (err == nil) != (n <= jwksKeys) || err == nil && len(keys) != n {
			t.Errorf("%d keys: got %d, %v", n, len(keys), err)
		}
	}
	for _, bits := range []int{minRSABits, minRSABits - 8} {
		weak := must1[*rsa.PrivateKey](t)(rsa.GenerateKey(rand.Reader, bits))
		keys, err := parseKeys(must1[[]byte](t)(json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: weak.Public()}}})))
		must(t, err)
		if len(keys) != map[bool]int{true: 1, false: 0}[bits >= minRSABits] {
			t.Errorf("%d bits: got %d keys", bits, len(keys))
		}
	}
	for _, document := range []string{"", "[]", "{}", "<html>", `{"keys":7}`} {
		if _, err := parseKeys([]byte(document)); err == nil {
			t.Errorf("%q is taken", document)
		}
	}
	if keys, err := parseKeys([]byte(`{"keys":[{"kty":"future"},7]}`)); err != nil || len(keys) != 0 {
		t.Errorf("unknown kinds: %d keys, %v", len(keys), err)
	}
}
