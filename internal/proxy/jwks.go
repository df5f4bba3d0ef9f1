// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	jwksTimeout  = 5 * time.Second
	jwksBytes    = 1 << 20
	jwksKeys     = 128
	jwksFresh    = 10 * time.Minute // then keys are fetched anew, behind the requests that use the old ones
	jwksStale    = 24 * time.Hour   // for so long keys are used while the endpoint is down
	jwksInterval = 10 * time.Second // between two fetches, whatever tokens ask for
	minRSABits   = 2048
)

// errNoKeys: tokens cannot be verified, since their keys could not be fetched.
var errNoKeys = errors.New("the keys that tokens are verified with cannot be fetched; the request was not executed")

// keySet is an issuer's public keys, as published at a URL. They are fetched when the first token comes, again after a while, and when a token names a
// key that is not among them, but never more often than every jwksInterval. While the endpoint is down the last ones are used.
type keySet struct {
	url    string
	client *http.Client
	now    func() time.Time

	mu      sync.Mutex
	keys    []jose.JSONWebKey
	fetched time.Time     // when keys were last fetched
	tried   time.Time     // when that was last tried
	failed  bool          // at that time
	going   chan struct{} // closed when the fetch that is under way has ended; nil: none is
}

func newKeySet(url string, now func() time.Time) *keySet {
	return &keySet{url: url, now: now, client: &http.Client{
		Timeout:       jwksTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the policy names the place, nobody else
	}}
}

// key is the key of that name for that algorithm; nil when there is none. A token without a name is verified with the only key for its algorithm, if
// there is but one. It fails with errNoKeys when nobody can tell.
func (s *keySet) key(ctx context.Context, kid, algorithm string) (*jose.JSONWebKey, error) {
	for {
		s.mu.Lock()
		now := s.now()
		found := s.find(kid, algorithm, now)
		due := now.Sub(s.tried) >= jwksInterval || s.tried.IsZero()
		if s.going == nil && due && (found == nil || now.Sub(s.fetched) >= jwksFresh) {
			s.going, s.tried = make(chan struct{}), now
			go s.fetch(context.WithoutCancel(ctx))
		}
		going, failed := s.going, s.failed
		s.mu.Unlock()
		switch {
		case found != nil:
			return found, nil
		case going == nil && failed:
			return nil, errNoKeys
		case going == nil:
			return nil, nil
		}
		select {
		case <-going:
		case <-ctx.Done():
			return nil, errNoKeys
		}
	}
}

func (s *keySet) find(kid, algorithm string, now time.Time) *jose.JSONWebKey {
	if now.Sub(s.fetched) >= jwksStale {
		return nil
	}
	var found *jose.JSONWebKey
	for i := range s.keys {
		k := &s.keys[i]
		if kid != "" && k.KeyID != kid || k.Algorithm != "" && k.Algorithm != algorithm {
			continue
		}
		if found != nil {
			return nil // more than one
		}
		found = k
	}
	return found
}

// fetch replaces the keys, or leaves them.
func (s *keySet) fetch(ctx context.Context) {
	keys, err := s.load(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = err != nil
	if err == nil {
		s.keys, s.fetched = keys, s.now()
	}
	close(s.going)
	s.going = nil
}

func (s *keySet) load(ctx context.Context) ([]jose.JSONWebKey, error) {
	ctx, cancel := context.WithTimeout(ctx, jwksTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return nil, err
	}
	response, err := s.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("fetch keys: status %d", response.StatusCode)
	}
	document, err := io.ReadAll(io.LimitReader(response.Body, jwksBytes+1))
	if err != nil || len(document) > jwksBytes {
		return nil, errors.Join(errors.New("fetch keys: no document, or one that is too large"), err)
	}
	return parseKeys(document)
}

// parseKeys are the public keys for signatures in a JWK set. Others are left out, and so are those of kinds that this program does not know:
// https://www.rfc-editor.org/rfc/rfc7517#section-5
func parseKeys(document []byte) ([]jose.JSONWebKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(document, &set); err != nil || set.Keys == nil {
		return nil, errors.New("parse keys: not a JWK set")
	}
	if len(set.Keys) > jwksKeys {
		return nil, fmt.Errorf("parse keys: more than %d", jwksKeys)
	}
	var keys []jose.JSONWebKey
	for _, raw := range set.Keys {
		var k jose.JSONWebKey
		if k.UnmarshalJSON(raw) != nil || !k.Valid() || !k.IsPublic() || k.Use != "" && k.Use != "sig" {
			continue
		}
		if public, ok := k.Key.(*rsa.PublicKey); ok && public.N.BitLen() < minRSABits {
			continue
		}
		keys = append(keys, k)
	}
	return keys, nil
}
