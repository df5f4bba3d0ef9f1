// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

func testRouter(patterns ...string) *router {
	var routes []proxyconfig.Route
	for _, pattern := range patterns {
		method, path, _ := strings.Cut(pattern, " ")
		r := sampleRoute()
		r.Name, r.Methods, r.Path = pattern, []string{method}, path
		routes = append(routes, r)
	}
	return newRouter(routes)
}

func matchTarget(rt *router, method, target string, header http.Header) (string, error) {
	u, err := url.ParseRequestURI(target)
	if err != nil {
		return "", err
	}
	found, err := rt.match(&http.Request{Method: method, URL: u, Header: header})
	if found == nil {
		return "", err
	}
	return found.Name, err
}

func TestMatch(t *testing.T) {
	rt := testRouter("POST /payments", "PUT /payments/{id}", "POST /orders/{id}/capture", "POST /orders/{id}/{item}/capture", "POST /files/{rest...}", "POST /CamelCase", "POST /tree/", "POST /tree/{leaf}", "DELETE /ends/{$}")
	for _, row := range []struct{ method, target, want, reason string }{
		{"POST", "/payments", "POST /payments", "as written"},
		{"POST", "/payments?x=/../y", "POST /payments", "the query is not part of the path"},
		{"POST", "/payments/", "POST /payments", "many apps do not mind a slash at the end"},
		{"POST", "//payments", "POST /payments", "doubled slashes"},
		{"POST", "/./payments", "POST /payments", "dot segments"},
		{"POST", "/x/../payments", "POST /payments", "dot segments upward"},
		{"POST", "/../payments", "POST /payments", "dot segments above the root"},
		{"POST", "/x/%2e%2e/payments", "POST /payments", "encoded dot segments"},
		{"POST", "/x/%2E%2e/payments", "POST /payments", "encoded in either case"},
		{"POST", "/x/..%2fpayments", "POST /payments", "an encoded slash"},
		{"POST", "/x%2F..%2Fpayments", "POST /payments", "encoded slashes"},
		{"POST", "/%70ayments", "POST /payments", "an encoded letter"},
		{"POST", "%2Fpayments", "", "no path at all: refused by net/http"},
		{"POST", "/%2Fpayments", "POST /payments", "an encoded slash that doubles"},
		{"POST", `/x\..\payments`, "POST /payments", "backslashes"},
		{"POST", "/x%5c..%5Cpayments", "POST /payments", "encoded backslashes"},
		{"POST", "/payments;jsessionid=1", "POST /payments", "a path parameter"},
		{"POST", "/payments%3bx", "POST /payments", "an encoded path parameter"},
		{"POST", "/;x/payments", "POST /payments", "a parameter of an empty segment"},
		{"POST", "/PAYMENTS", "POST /payments", "apps that fold case"},
		{"POST", "/Payments/", "POST /payments", "and a slash"},
		{"POST", "/camelcase", "POST /CamelCase", "a pattern in upper case"},
		{"POST", "/CamelCase", "POST /CamelCase", "as written"},
		{"POST", "http://elsewhere/payments", "POST /payments", "absolute form"},
		{"post", "/payments", "POST /payments", "a method in lower case"},
		{"PUT", "/payments/a%2Fb", "PUT /payments/{id}", "an encoded slash in a wildcard"},
		{"PUT", "/payments/ABC", "PUT /payments/{id}", "upper case in a wildcard"},
		{"PUT", "/payments", "", "another path"},
		{"POST", "/orders/1/capture", "POST /orders/{id}/capture", "as written"},
		{"POST", "/files/a//b/../c", "POST /files/{rest...}", "anything below"},
		{"POST", "/tree", "POST /tree/", "the root of a subtree"},
		{"POST", "/tree/LEAF", "POST /tree/{leaf}", "upper case is no other reading"},
		{"POST", "/tree/leaf/twig", "POST /tree/", "the subtree"},
		{"DELETE", "/ends/", "DELETE /ends/{$}", "as written"},
		{"GET", "/payments", "", "a method without routes"},
		{"POST", "/paymentsx", "", "another path"},
		{"POST", "/x/payments", "", "another path"},
		{"POST", "/", "", "another path"},
		{"OPTIONS", "*", "", "no path"},
	} {
		got, err := matchTarget(rt, row.method, row.target, nil)
		if row.target == "%2Fpayments" {
			if err == nil {
				t.Error("net/url took a target without a slash")
			}
			continue
		}
		if got != row.want || err != nil {
			t.Errorf("%s %s: got %q, %v, want %q: %s", row.method, row.target, got, err, row.want, row.reason)
		}
	}
}

func TestAmbiguousPathIsRefused(t *testing.T) {
	rt := testRouter("POST /orders/{id}", "POST /orders/{id}/capture", "POST /refunds")
	for _, target := range []string{"http:refunds", "/orders/1%2Fcapture", "/orders/..%2Frefunds", "/orders/%2e%2e%2frefunds"} {
		if got, err := matchTarget(rt, "POST", target, nil); err == nil {
			t.Errorf("%s: matched %q", target, got)
		}
	}
}

func TestMethodOverride(t *testing.T) {
	rt := testRouter("PUT /payments", "POST /refunds")
	for _, row := range []struct {
		target string
		header http.Header
		want   string
	}{
		{"/payments", http.Header{"X-Http-Method-Override": {"put"}}, "PUT /payments"},
		{"/payments", http.Header{"X-Http-Method": {"PUT"}}, "PUT /payments"},
		{"/payments", http.Header{"X-Method-Override": {" PUT"}}, "PUT /payments"},
		{"/payments", http.Header{"X_http_method_override": {"PUT"}}, "PUT /payments"},
		{"/payments", http.Header{"X_http-Method": {"PUT"}}, "PUT /payments"},
		{"/payments", http.Header{"X-Http-Methods": {"PUT"}}, ""},
		{"/payments", http.Header{"X-Http-Method-Override": {"PATCH"}}, ""},
		{"/refunds", http.Header{"X-Http-Method-Override": {"GET"}}, "POST /refunds"},
	} {
		if got, err := matchTarget(rt, "POST", row.target, row.header); got != row.want || err != nil {
			t.Errorf("%+v: got %q %v", row, got, err)
		}
	}
}

func TestRoutesThatDifferInCase(t *testing.T) {
	rt := testRouter("POST /a", "POST /A")
	for target, want := range map[string]string{"/a": "POST /a", "/A": "POST /A"} {
		if got, err := matchTarget(rt, "POST", target, nil); got != want || err != nil {
			t.Errorf("%s: got %q %v", target, got, err)
		}
	}
}

// FuzzMatch: no spelling of an enforced path passes as another one. What an app reads is the decoded, cleaned path, as Go's own apps do.
func FuzzMatch(f *testing.F) {
	for _, seed := range []string{"/payments", "//payments", "/x/..%2Fpayments", `/x\..\payments`, "/payments;a", "/%70ayments", "/PAYMENTS/", "/a/%2e%2e/payments/./"} {
		f.Add(seed)
	}
	rt := testRouter("POST /payments")
	f.Fuzz(func(t *testing.T, target string) {
		u, err := url.ParseRequestURI(target)
		if err != nil || !strings.HasPrefix(u.Path, "/") {
			return
		}
		got, err := rt.match(&http.Request{Method: http.MethodPost, URL: u})
		if err != nil {
			t.Fatalf("%q: %v with one route", target, err)
		}
		if clean(strings.ToLower(u.Path)) == "/payments" && got == nil {
			t.Fatalf("%q is read as /payments and is not enforced", target)
		}
	})
}
