// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net/http"
	"net/textproto"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// route is a compiled proxyconfig.Route.
type route struct {
	proxyconfig.Route
	pattern    *regexp.Regexp // of the whole key; nil: any
	pointers   map[string]bool
	recordable map[string]bool // header names to record beside the built-in ones
	window     time.Duration
	maxWait    time.Duration
	timeout    time.Duration
}

func newRoute(r proxyconfig.Route) *route {
	compiled := &route{
		Route:      r,
		pointers:   set(r.FingerprintIgnore),
		recordable: set(r.ResponseHeaders),
		window:     time.Duration(r.WindowMillis) * time.Millisecond,
		maxWait:    time.Duration(r.MaxWaitMillis) * time.Millisecond,
		timeout:    time.Duration(r.TimeoutMillis) * time.Millisecond,
	}
	if r.KeyPattern != "" {
		compiled.pattern = regexp.MustCompile(`^(?:` + r.KeyPattern + `)$`) // proxyconfig.Validate compiled it already
	}
	return compiled
}

func set(names []string) map[string]bool {
	s := make(map[string]bool, len(names))
	for _, name := range names {
		s[name] = true
	}
	return s
}

// router finds the route of a request. http.ServeMux compares; that it would redirect is not wanted here: the app decides what a spelling
// means, and the router must not be evaded by one that the app reads as an enforced path. See docs/spec/proxy.md, Routes.
type router struct {
	exact    *http.ServeMux
	folded   *http.ServeMux // the same patterns in lower case, for apps that do not mind case
	byMethod map[string]bool
	exactly  map[string]*route // by pattern
	folding  map[string]*route
}

func newRouter(routes []proxyconfig.Route) *router {
	rt := &router{exact: http.NewServeMux(), folded: http.NewServeMux(), byMethod: map[string]bool{}, exactly: map[string]*route{}, folding: map[string]*route{}}
	for _, r := range routes {
		compiled := newRoute(r)
		for _, method := range r.Methods {
			rt.byMethod[method] = true
			pattern := method + " " + r.Path
			rt.exact.Handle(pattern, http.NotFoundHandler())
			rt.exactly[pattern] = compiled
			pattern = method + " " + foldPattern(r.Path)
			if register(rt.folded, pattern) {
				rt.folding[pattern] = compiled
			}
		}
	}
	for method := range rt.byMethod {
		// What no route matches falls under this one; else ServeMux collects for each the methods that it would have allowed.
		register(rt.exact, method+" /")
		register(rt.folded, method+" /")
	}
	return rt
}

// register reports false for a pattern that conflicts with an earlier one: two routes that differ in case only are told apart by exact alone.
func register(mux *http.ServeMux, pattern string) (ok bool) {
	defer func() { ok = recover() == nil }()
	mux.Handle(pattern, http.NotFoundHandler())
	return true
}

// foldPattern puts all of a pattern but its wildcards in lower case.
func foldPattern(pattern string) string {
	segments := strings.Split(pattern, "/")
	for i, segment := range segments {
		if !strings.HasPrefix(segment, "{") {
			segments[i] = strings.ToLower(segment)
		}
	}
	return strings.Join(segments, "/")
}

// match is the route that some reading of the request falls under, nil when none does. Two readings under two routes are errPathAmbiguous, and so
// is a target without a path, such as http:payments, which net/http takes and nobody can be sure how an app reads.
func (rt *router) match(r *http.Request) (*route, error) {
	if r.URL.Opaque != "" {
		return nil, fmt.Errorf("%w: the target has no path", errPathAmbiguous)
	}
	for _, method := range methods(r) {
		if !rt.byMethod[method] {
			continue
		}
		if found, err := rt.matchPath(method, r.URL); found != nil || err != nil {
			return found, err
		}
	}
	return nil, nil
}

// methods are those that an app may act on, the request's own first and the others in order: frameworks fold case, and some let a header override
// the method. Under CGI and what descends from it X_HTTP_Method_Override is one of them: https://www.rfc-editor.org/rfc/rfc3875#section-4.1.18
func methods(r *http.Request) []string {
	found := []string{strings.ToUpper(r.Method)}
	for name, values := range r.Header {
		if !overridesMethod(name) {
			continue
		}
		for _, method := range values {
			found = append(found, strings.ToUpper(strings.TrimSpace(method)))
		}
	}
	slices.Sort(found[1:])
	return found
}

func overridesMethod(name string) bool {
	if name == "" || name[0] != 'X' && name[0] != 'x' {
		return false
	}
	switch textproto.CanonicalMIMEHeaderKey(strings.ReplaceAll(name, "_", "-")) {
	case "X-Http-Method-Override", "X-Http-Method", "X-Method-Override":
		return true
	}
	return false
}

func (rt *router) matchPath(method string, u *url.URL) (*route, error) {
	escaped := u.EscapedPath()
	found := rt.exactly[lookup(rt.exact, method, escaped)]
	spellings := []string{escaped}
	if !plain(escaped) {
		spellings = append(spellings, readings(escaped, u.Path)...)
	}
	for _, reading := range spellings[1:] {
		other := rt.exactly[lookup(rt.exact, method, reading)]
		if other == nil || other == found {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("%w: %q and %q; write it without dot segments, doubled or encoded slashes", errPathAmbiguous, found.Name, other.Name)
		}
		found = other
	}
	if found != nil {
		return found, nil
	}
	return rt.matchLoosely(method, spellings), nil
}

// matchLoosely is for apps that mind neither case nor a slash at the end.
func (rt *router) matchLoosely(method string, spellings []string) *route {
	for _, spelling := range spellings {
		trimmed := strings.TrimRight(strings.ToLower(spelling), "/")
		for _, reading := range []string{trimmed, trimmed + "/"} {
			if found := rt.folding[lookup(rt.folded, method, reading)]; found != nil {
				return found
			}
		}
	}
	return nil
}

// lookup is the pattern that ServeMux would serve or redirect the path to; "" for none.
func lookup(mux *http.ServeMux, method, escaped string) string {
	u := &url.URL{Path: escaped}
	if decoded, err := url.PathUnescape(escaped); err == nil {
		u.Path, u.RawPath = decoded, escaped
	}
	_, pattern := mux.Handler(&http.Request{Method: method, URL: u})
	if strings.HasPrefix(pattern, "/") || pattern == "" {
		return ""
	}
	return pattern
}

// plain reports whether every app finds the same segments in the escaped path: it has no escapes, parameters, backslashes, dot segments or
// doubled slashes.
func plain(escaped string) bool {
	return !strings.ContainsAny(escaped, `%;\`) && !strings.Contains(escaped, "//") && !strings.Contains(escaped, "/.")
}

// readings are the paths, escaped, that apps and frameworks are known to make of one: decoded, encoded slashes included; with backslashes as
// slashes; without path parameters; without doubled slashes and dot segments.
func readings(escaped, decoded string) []string {
	var all []string
	for _, p := range []string{escaped, escape(decoded), escape(strings.ReplaceAll(decoded, `\`, "/"))} {
		all = append(all, clean(p), clean(withoutParameters(p)))
	}
	return all
}

// clean is path.Clean that keeps a slash at the end.
func clean(escaped string) string {
	cleaned := path.Clean("/" + escaped)
	if strings.HasSuffix(escaped, "/") && cleaned != "/" {
		cleaned += "/"
	}
	return cleaned
}

func escape(decoded string) string { return (&url.URL{Path: decoded}).EscapedPath() }

// withoutParameters cuts ;name=value from every segment, as servlet containers do.
func withoutParameters(escaped string) string {
	segments := strings.Split(strings.ReplaceAll(strings.ReplaceAll(escaped, "%3B", ";"), "%3b", ";"), "/")
	for i, segment := range segments {
		segments[i], _, _ = strings.Cut(segment, ";")
	}
	return strings.Join(segments, "/")
}
