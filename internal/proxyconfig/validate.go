// SPDX-License-Identifier: Apache-2.0

package proxyconfig

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/textproto"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The bounds of a document. They are the API's own, checked again because a file may be written by hand.
const (
	maxRoutes   = 64
	maxKey      = 255
	maxResponse = 64 << 20
	minWindow   = time.Minute
	maxWindow   = 366 * 24 * time.Hour
	maxTimeout  = time.Hour
	maxWait     = time.Minute
	maxReplicas = 5
)

// Validate reports everything that is wrong with c, one line each, named by the field's path.
func Validate(c Config) error {
	var errs problems
	if c.Version != Version {
		return versionError(c.Version)
	}
	errs.check(c.Keyspace != "", "keyspace: is empty")
	errs.oneOf("mode", c.Mode, "Enforce", "Audit")
	errs.oneOf("store.type", c.Store.Type, "Postgres", "Redis")
	errs.check((c.Store.Schema != "") == (c.Store.Type != "Redis"), "store.schema: is needed with type Postgres, and with no other")
	errs.check(c.Store.MinReplicas >= 0 && c.Store.MinReplicas <= maxReplicas, "store.minReplicas: %d is not between 0 and %d", c.Store.MinReplicas, maxReplicas)
	errs.check(c.Store.MinReplicas == 0 || c.Store.Type == "Redis", "store.minReplicas: belongs to type Redis")
	errs.oneOf("store.onUnavailable", c.Store.OnUnavailable, "Reject", "PassThrough")
	errs.client(c.Client)
	errs.check(len(c.Routes) > 0 && len(c.Routes) <= maxRoutes, "routes: %d of them, want 1 to %d", len(c.Routes), maxRoutes)
	names := map[string]bool{}
	for i, r := range c.Routes {
		at := fmt.Sprintf("routes[%d]", i)
		errs.check(r.Name != "" && !names[r.Name], "%s.name: %q is empty or not unique", at, r.Name)
		names[r.Name] = true
		errs.route(at, r)
	}
	if len(errs) == 0 {
		errs.overlap(c.Routes)
	}
	return errors.Join(errs...)
}

type problems []error

func (p *problems) check(ok bool, format string, args ...any) {
	if !ok {
		*p = append(*p, fmt.Errorf(format, args...))
	}
}

func (p *problems) oneOf(at, got string, allowed ...string) {
	p.check(slices.Contains(allowed, got), "%s: %q is none of %s", at, got, strings.Join(allowed, ", "))
}

func (p *problems) between(at string, millis int64, least, most time.Duration) {
	p.check(millis >= least.Milliseconds() && millis <= most.Milliseconds(), "%s: %d is not between %d and %d", at, millis, least.Milliseconds(), most.Milliseconds())
}

func (p *problems) client(c Client) {
	p.oneOf("client.type", c.Type, "Header", "JWT", "Authorization", "Shared")
	p.jwt(c)
	if c.Type == "Header" {
		p.requestHeader("client.header", c.Header)
		p.check(c.Header != "Host", "client.header: Host names no client")
	} else {
		p.check(c.Header == "" && len(c.TrustedCIDRs) == 0, "client: header and trustedCIDRs belong to type Header")
	}
	for i, cidr := range c.TrustedCIDRs {
		_, err := netip.ParsePrefix(cidr)
		p.check(err == nil, "client.trustedCIDRs[%d]: %q is not an address range", i, cidr)
	}
}

func (p *problems) header(at, name string) {
	p.check(name != "" && textproto.CanonicalMIMEHeaderKey(name) == name && validToken(name), "%s: %q is not a canonical header name", at, name)
}

func (p *problems) jwt(c Client) {
	p.check((c.Type == "JWT") == (c.JWT != nil), "client.jwt: it belongs to type JWT, and type JWT needs it")
	if c.JWT == nil {
		return
	}
	p.check(c.JWT.Issuer != "", "client.jwt.issuer: is empty")
	p.check(len(c.JWT.Audiences) > 0 && !slices.Contains(c.JWT.Audiences, ""), "client.jwt.audiences: none, or one that is empty")
	p.check(c.JWT.Claim != "", "client.jwt.claim: is empty")
	problem := JWKSURIProblem(c.JWT.JWKSURI)
	p.check(problem == "", "client.jwt.jwksURI: %s", problem)
}

// JWKSURIProblem says what is wrong with the place of an issuer's keys; nothing: "". Whoever can answer in its stead can make himself any client.
func JWKSURIProblem(uri string) string {
	u, err := url.Parse(uri)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" {
		return "write an absolute URL without user and fragment, such as https://issuer.example/.well-known/jwks.json"
	}
	host := u.Hostname()
	address, err := netip.ParseAddr(host)
	inside := err == nil && address.IsLoopback() || strings.HasSuffix(host, ".svc") || strings.HasSuffix(host, ".svc.cluster.local")
	if u.Scheme != "https" && (u.Scheme != "http" || !inside) {
		return "write an https URL; http is for services of the cluster, whose names end in .svc or .svc.cluster.local"
	}
	return ""
}

// requestHeader refuses, beside what is no name, what net/http takes out of a request's header: it would never be seen.
func (p *problems) requestHeader(at, name string) {
	p.header(at, name)
	p.check(name != "Transfer-Encoding" && name != "Trailer", "%s: %s ends at the sidecar", at, name)
}

// validToken is https://www.rfc-editor.org/rfc/rfc9110#section-5.6.2.
func validToken(name string) bool {
	const allowed = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	return strings.Trim(name, allowed) == ""
}

func (p *problems) route(at string, r Route) {
	p.check(len(r.Methods) > 0, "%s.methods: is empty", at)
	for i, method := range r.Methods {
		p.oneOf(fmt.Sprintf("%s.methods[%d]", at, i), method, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete)
	}
	p.check(strings.HasPrefix(r.Path, "/"), "%s.path: %q does not begin with /", at, r.Path)
	p.keySource(at, r)
	p.check(r.KeyMaxLength >= 1 && r.KeyMaxLength <= maxKey, "%s.keyMaxLength: %d is not between 1 and %d", at, r.KeyMaxLength, maxKey)
	_, err := regexp.Compile(`^(?:` + r.KeyPattern + `)$`)
	p.check(err == nil, "%s.keyPattern: %v", at, err)
	p.between(at+".windowMillis", r.WindowMillis, minWindow, maxWindow)
	for i, name := range r.FingerprintHeaders {
		p.requestHeader(fmt.Sprintf("%s.fingerprintHeaders[%d]", at, i), name)
	}
	for i, pointer := range r.FingerprintIgnore {
		p.check(PointerProblem(pointer) == "", "%s.fingerprintIgnore[%d]: %s", at, i, PointerProblem(pointer))
	}
	p.oneOf(at+".inFlight", r.InFlight, "Reject", "Wait")
	p.between(at+".maxWaitMillis", r.MaxWaitMillis, 0, maxWait)
	p.oneOf(at+".onUnknownOutcome", r.OnUnknownOutcome, "Block", "Reexecute", "Reconcile")
	p.check((r.OnUnknownOutcome == "Reconcile") == strings.HasPrefix(r.ReconcilePath, "/"), "%s.reconcilePath: %q does not fit onUnknownOutcome %s", at, r.ReconcilePath, r.OnUnknownOutcome)
	if _, err := url.ParseRequestURI(r.ReconcilePath); r.ReconcilePath != "" {
		p.check(err == nil, "%s.reconcilePath: %q is no path", at, r.ReconcilePath)
	}
	if r.ReplayAuthorization != "" {
		_, err := url.ParseRequestURI(r.ReplayAuthorization)
		ok := err == nil && strings.HasPrefix(r.ReplayAuthorization, "/") && !strings.HasPrefix(r.ReplayAuthorization, "//") && !strings.ContainsAny(r.ReplayAuthorization, "?#")
		p.check(ok, "%s.replayAuthorization: %q is no path", at, r.ReplayAuthorization)
	}
	p.oneOf(at+".responseStore", r.ResponseStore, "", ResponseReference)
	p.check(r.ResponseMaxBytes >= 0 && r.ResponseMaxBytes <= maxResponse, "%s.responseMaxBytes: %d is not between 0 and %d", at, r.ResponseMaxBytes, maxResponse)
	for i, name := range r.ResponseHeaders {
		p.header(fmt.Sprintf("%s.responseHeaders[%d]", at, i), name)
	}
	for _, status := range slices.Sorted(maps.Keys(r.StatusRules)) {
		rule := r.StatusRules[status]
		p.check(status >= 200 && status <= 599, "%s.statusRules: %d is not a final status code", at, status)
		p.oneOf(fmt.Sprintf("%s.statusRules[%d]", at, status), rule, "Store", "Release")
	}
	p.between(at+".timeoutMillis", r.TimeoutMillis, time.Millisecond, maxTimeout)
	p.check(r.WindowMillis >= r.TimeoutMillis, "%s.windowMillis: %d is shorter than timeoutMillis, %d: a retry would execute again while the app works", at, r.WindowMillis, r.TimeoutMillis)
}

func (p *problems) keySource(at string, r Route) {
	if r.KeySource == "" {
		p.requestHeader(at+".keyHeader", r.KeyHeader)
		p.check(r.KeyHeader != "Host", "%s.keyHeader: Host holds no key", at)
	} else {
		p.oneOf(at+".keySource", r.KeySource, KeyCloudEvent, KeyJSONPointer, KeyFingerprint)
		p.check(r.KeyHeader == "", "%s.keyHeader: %q is not looked at with keySource %s", at, r.KeyHeader, r.KeySource)
	}
	if r.KeySource == KeyJSONPointer {
		p.check(PointerProblem(r.KeyPointer) == "", "%s.keyPointer: %s", at, PointerProblem(r.KeyPointer))
	} else {
		p.check(r.KeyPointer == "", "%s.keyPointer: it belongs to keySource %s", at, KeyJSONPointer)
	}
	p.check(r.KeySource != KeyFingerprint || r.KeyRequired && r.KeyPattern == "", "%s.keySource: with %s a key is never missing and matches no pattern", at, KeyFingerprint)
}

// PointerProblem says what is wrong with an RFC 6901 pointer to a field of a document; nothing: "".
func PointerProblem(pointer string) string {
	if pointer == "" {
		return "the empty pointer is the whole body: name a field, such as /metadata/sentAt"
	}
	if !strings.HasPrefix(pointer, "/") {
		return "a JSON pointer begins with /, as in /metadata/sentAt"
	}
	if strings.Contains(strings.NewReplacer("~0", "", "~1", "").Replace(pointer), "~") {
		return "in a JSON pointer ~ is written ~0, and / within a name ~1"
	}
	return ""
}

// overlap asks http.ServeMux, which the sidecar matches with, whether it takes the patterns.
func (p *problems) overlap(routes []Route) {
	mux := http.NewServeMux()
	for i, r := range routes {
		for _, method := range r.Methods {
			err := register(mux, method+" "+r.Path)
			p.check(err == nil, "routes[%d].path: %v", i, err)
		}
	}
}

func register(mux *http.ServeMux, pattern string) (err error) {
	defer func() {
		// ServeMux has no other way to say that a pattern is bad or conflicts: https://pkg.go.dev/net/http#ServeMux.Handle
		if reason := recover(); reason != nil {
			err = fmt.Errorf("pattern %q: %v", pattern, reason)
		}
	}()
	mux.Handle(pattern, http.NotFoundHandler())
	return nil
}
