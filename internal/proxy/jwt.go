// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

const (
	maxToken = 16 << 10
	// leeway is by how much the clocks of issuer and sidecar may differ.
	leeway = time.Minute
)

// algorithms are those with a public key. Without the others nobody can sign with what the issuer publishes, or not at all:
// https://www.rfc-editor.org/rfc/rfc8725#section-3.1
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// tokens says who a request is from by its bearer token: https://www.rfc-editor.org/rfc/rfc6750, https://www.rfc-editor.org/rfc/rfc7519
type tokens struct {
	proxyconfig.JWT
	keys *keySet
	now  func() time.Time
}

// of is the client that r's token names: errNoClient when it names none, or cannot be believed; errNoKeys when nobody can tell.
func (t *tokens) of(r *http.Request) (string, error) {
	text, err := bearer(r.Header["Authorization"])
	if err != nil {
		return "", err
	}
	token, err := jwt.ParseSigned(text, algorithms)
	if err != nil || len(token.Headers) != 1 {
		return "", invalidToken("it is not a JWT with a signature that this service takes")
	}
	claims, err := t.verify(r.Context(), token)
	if err != nil {
		return "", err
	}
	client, ok := claims[t.Claim].(string)
	if !ok || !validClient(client) {
		return "", invalidToken(fmt.Sprintf("its claim %s is not a text of 1 to %d printable bytes", t.Claim, maxClient))
	}
	return client, nil
}

// bearer is the token in the only Authorization field.
func bearer(fields []string) (string, error) {
	if len(fields) == 1 {
		scheme, token, _ := strings.Cut(fields[0], " ")
		token = strings.TrimLeft(token, " ")
		switch {
		case !strings.EqualFold(scheme, "Bearer"):
		case len(token) > maxToken:
			return "", invalidToken(fmt.Sprintf("it is longer than %d bytes", maxToken))
		case token != "":
			return token, nil
		}
	}
	return "", &refusal{err: fmt.Errorf("%w: exactly one Authorization header with a bearer token is needed", errNoClient), challenge: "Bearer"}
}

// verify is the claims of a token that the issuer signed, for this audience and this time.
func (t *tokens) verify(ctx context.Context, token *jwt.JSONWebToken) (map[string]any, error) {
	head := token.Headers[0]
	key, err := t.keys.key(ctx, head.KeyID, head.Algorithm)
	if err != nil {
		return nil, err
	}
	if key == nil {
		return nil, invalidToken("it is signed with a key that its issuer does not publish")
	}
	var registered jwt.Claims
	claims := map[string]any{}
	if err := token.Claims(key.Key, &registered, &claims); err != nil {
		return nil, invalidToken("its signature does not hold")
	}
	if registered.Expiry == nil {
		return nil, invalidToken("it never expires")
	}
	err = registered.ValidateWithLeeway(jwt.Expected{Issuer: t.Issuer, AnyAudience: t.Audiences, Time: t.now()}, leeway)
	switch {
	case errors.Is(err, jwt.ErrInvalidIssuer):
		return nil, invalidToken("it is from another issuer")
	case errors.Is(err, jwt.ErrInvalidAudience):
		return nil, invalidToken("it is for another audience")
	case errors.Is(err, jwt.ErrExpired):
		return nil, invalidToken("it has expired")
	case err != nil:
		return nil, invalidToken("it is not valid yet")
	}
	return claims, nil
}

// invalidToken is https://www.rfc-editor.org/rfc/rfc6750#section-3.1. why holds nothing of the token.
func invalidToken(why string) error {
	return &refusal{err: fmt.Errorf("%w: the bearer token does not tell: %s", errNoClient, why), challenge: `Bearer error="invalid_token"`}
}
