// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// The bounds of a route. A window is bounded so that it can be kept and paid for, the others so that a request ends.
const (
	minWindow  = time.Minute
	maxWindow  = 366 * 24 * time.Hour
	minTimeout = time.Millisecond
	maxTimeout = time.Hour
	maxMaxWait = time.Minute
	maxRoutes  = 64
)

var maxResponse = resource.MustParse("64Mi")

func validateRoutes(at *field.Path, spec v1alpha1.IdempotencyPolicySpec) field.ErrorList {
	if len(spec.Routes) == 0 {
		return field.ErrorList{field.Required(at, "a policy without a route protects nothing: name at least one, such as {name: create-payment, methods: [POST], path: /payments}")}
	}
	if len(spec.Routes) > maxRoutes {
		return field.ErrorList{field.TooMany(at, len(spec.Routes), maxRoutes)}
	}
	var errs field.ErrorList
	names := map[string]bool{}
	for i, route := range spec.Routes {
		if names[route.Name] {
			errs = append(errs, field.Duplicate(at.Index(i).Child("name"), route.Name))
		}
		names[route.Name] = true
		errs = append(errs, validateRoute(at.Index(i), route, spec)...)
	}
	return append(errs, validateOverlap(at, spec.Routes)...)
}

func validateRoute(at *field.Path, r v1alpha1.Route, spec v1alpha1.IdempotencyPolicySpec) field.ErrorList {
	var errs field.ErrorList
	for _, message := range validation.IsDNS1123Label(r.Name) {
		errs = append(errs, field.Invalid(at.Child("name"), r.Name, message))
	}
	errs = append(errs, validateMethods(at.Child("methods"), r.Methods)...)
	errs = append(errs, validatePath(at.Child("path"), r.Path)...)
	errs = append(errs, validateKey(at.Child("key"), r.Key, spec.Client.Header)...)
	if r.Key.Source.Fingerprint != nil && r.Window == "" {
		errs = append(errs, field.Required(at.Child("window"), "without a key, equal requests within the window are one: write the route's own window, a short one, such as 1m"))
	}
	if r.Window != "" {
		errs = append(errs, validateWindow(at.Child("window"), r.Window)...)
	}
	errs = append(errs, validateFingerprint(at.Child("fingerprint"), r.Fingerprint)...)
	errs = append(errs, validateInFlight(at.Child("inFlight"), r.InFlight)...)
	errs = append(errs, validateUnknown(at, r)...)
	if r.ReplayAuthorization != "" {
		errs = append(errs, validateAppPath(at.Child("replayAuthorization"), r.ReplayAuthorization, "/may-replay")...)
	}
	errs = append(errs, validateResponses(at.Child("responses"), r.Responses)...)
	return append(errs, validateTimeout(at, r, spec.Retention.Window)...)
}

// validateTimeout refuses a window that could be over while the app still works: a retry would then find nothing. window is that of routes which name none.
func validateTimeout(at *field.Path, r v1alpha1.Route, window v1alpha1.Duration) field.ErrorList {
	errs := validateDuration(at.Child("timeout"), r.Timeout, minTimeout, maxTimeout, "a timeout is between 1ms and 1h")
	named := "retention.window"
	if r.Window != "" {
		window, named = r.Window, "window"
	}
	timeout, err := r.Timeout.Parse()
	honoured, windowErr := window.Parse()
	if err == nil && windowErr == nil && honoured >= minWindow && honoured < timeout {
		errs = append(errs, field.Invalid(at.Child("timeout"), string(r.Timeout), fmt.Sprintf(
			"the app may take longer than the entry is honoured, %s (%s), and a retry after that would execute again: write a shorter timeout or a longer window", window, named)))
	}
	return errs
}

func validateMethods(at *field.Path, methods []v1alpha1.Method) field.ErrorList {
	if len(methods) == 0 {
		return field.ErrorList{field.Required(at, "name at least one of POST, PUT, PATCH and DELETE")}
	}
	var errs field.ErrorList
	seen := map[v1alpha1.Method]bool{}
	for i, method := range methods {
		errs = append(errs, oneOf(at.Index(i), method, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete)...)
		if seen[method] {
			errs = append(errs, field.Duplicate(at.Index(i), method))
		}
		seen[method] = true
	}
	return errs
}

func validatePath(at *field.Path, path string) field.ErrorList {
	if !strings.HasPrefix(path, "/") {
		return field.ErrorList{field.Invalid(at, path, "a path begins with /")}
	}
	if len(path) > 1024 {
		return field.ErrorList{field.TooLong(at, "", 1024)}
	}
	if problem := register(http.MethodPost + " " + path); problem != "" {
		return field.ErrorList{field.Invalid(at, path, "write the path of a Go http.ServeMux pattern, such as /orders/{id}/capture: "+problem)}
	}
	return nil
}

func validateKey(at *field.Path, key v1alpha1.Key, clientHeader string) field.ErrorList {
	errs := validateKeySource(at.Child("source"), key.Source, clientHeader)
	if key.Source.Fingerprint != nil && key.Pattern != "" {
		errs = append(errs, field.Forbidden(at.Child("pattern"), "with source fingerprint there is no key that could match it: remove it"))
	}
	if key.Source.Fingerprint != nil && key.Required != nil && !*key.Required {
		errs = append(errs, field.Invalid(at.Child("required"), false, "with source fingerprint a key is never missing: remove it"))
	}
	if key.MaxLength < 1 || key.MaxLength > 255 {
		errs = append(errs, field.Invalid(at.Child("maxLength"), key.MaxLength, "write a number of bytes from 1 to 255"))
	}
	if len(key.Pattern) > 512 {
		errs = append(errs, field.TooLong(at.Child("pattern"), "", 512))
	} else if _, err := regexp.Compile(key.Pattern); err != nil {
		errs = append(errs, field.Invalid(at.Child("pattern"), key.Pattern, "write an RE2 regular expression, such as [0-9a-f]{32}: "+err.Error()))
	}
	return errs
}

func validateKeySource(at *field.Path, source v1alpha1.KeySource, clientHeader string) field.ErrorList {
	set := 0
	for _, is := range []bool{source.Header != "", source.CloudEvent != nil, source.JSONPointer != "", source.Fingerprint != nil} {
		if is {
			set++
		}
	}
	if set != 1 {
		return field.ErrorList{field.Invalid(at, fmt.Sprintf("%d of them set", set), "set exactly one of header, cloudEvent, jsonPointer and fingerprint")}
	}
	if source.JSONPointer != "" {
		if problem := proxyconfig.PointerProblem(source.JSONPointer); problem != "" || len(source.JSONPointer) > 512 {
			return field.ErrorList{field.Invalid(at.Child("jsonPointer"), source.JSONPointer, cmp.Or(problem, "write a pointer of at most 512 bytes"))}
		}
	}
	if source.Header == "" {
		return nil
	}
	errs := validateHeader(at.Child("header"), source.Header, unfitForIdentity)
	if textproto.CanonicalMIMEHeaderKey(source.Header) == textproto.CanonicalMIMEHeaderKey(clientHeader) {
		errs = append(errs, field.Invalid(at.Child("header"), source.Header, "this header holds the client already: name another"))
	}
	return errs
}

func validateFingerprint(at *field.Path, fingerprint v1alpha1.Fingerprint) field.ErrorList {
	var errs field.ErrorList
	for i, name := range fingerprint.Headers {
		errs = append(errs, validateHeader(at.Child("headers").Index(i), name, unfitForRequest)...)
	}
	for i, pointer := range fingerprint.Ignore {
		if problem := proxyconfig.PointerProblem(pointer); problem != "" {
			errs = append(errs, field.Invalid(at.Child("ignore").Index(i), pointer, problem))
		}
	}
	if len(fingerprint.Ignore) > 0 && fingerprint.CanonicalJSON != nil && !*fingerprint.CanonicalJSON {
		errs = append(errs, field.Forbidden(at.Child("ignore"), "a body that is compared byte by byte has no fields to leave out: remove ignore, or set canonicalJSON: true"))
	}
	return errs
}

func validateInFlight(at *field.Path, inFlight v1alpha1.InFlight) field.ErrorList {
	errs := oneOf(at.Child("mode"), inFlight.Mode, v1alpha1.InFlightReject, v1alpha1.InFlightWait)
	least := time.Duration(0)
	if inFlight.Mode == v1alpha1.InFlightWait {
		least = time.Millisecond
	}
	return append(errs, validateDuration(at.Child("maxWait"), inFlight.MaxWait, least, maxMaxWait, "a wait is between 1ms and 60s; set mode: Reject for none")...)
}

func validateUnknown(at *field.Path, r v1alpha1.Route) field.ErrorList {
	errs := oneOf(at.Child("onUnknownOutcome"), r.OnUnknownOutcome, v1alpha1.UnknownBlock, v1alpha1.UnknownReexecute, v1alpha1.UnknownReconcile)
	at = at.Child("reconcilePath")
	if r.OnUnknownOutcome != v1alpha1.UnknownReconcile {
		if r.ReconcilePath != "" {
			errs = append(errs, field.Forbidden(at, "nobody would ask it: set onUnknownOutcome: Reconcile or remove it"))
		}
		return errs
	}
	if r.ReconcilePath == "" {
		return append(errs, field.Required(at, "Reconcile asks the app: write the path that answers whether the request took effect, such as /reconcile"))
	}
	return append(errs, validateAppPath(at, r.ReconcilePath, "/reconcile")...)
}

// validateAppPath refuses what is no path on the app.
func validateAppPath(at *field.Path, path, example string) field.ErrorList {
	_, err := url.ParseRequestURI(path)
	if err != nil || !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || strings.ContainsAny(path, "?# ") || len(path) > 1024 {
		return field.ErrorList{field.Invalid(at, path, "write a path on the app, without host, query or fragment, such as "+example)}
	}
	return nil
}

func validateResponses(at *field.Path, responses v1alpha1.Responses) field.ErrorList {
	errs := oneOf(at.Child("store"), responses.Store, v1alpha1.ResponseFull, v1alpha1.ResponseReference)
	if responses.MaxBytes.Sign() < 0 || responses.MaxBytes.Cmp(maxResponse) > 0 {
		errs = append(errs, field.Invalid(at.Child("maxBytes"), responses.MaxBytes.String(), "write a size from 0 to 64Mi"))
	}
	for i, name := range responses.Headers {
		errs = append(errs, validateHeader(at.Child("headers").Index(i), name, UnfitForReplay)...)
	}
	for _, code := range slices.Sorted(maps.Keys(responses.Statuses)) {
		if status, err := strconv.Atoi(code); err != nil || len(code) != 3 || status < 200 || status > 599 {
			errs = append(errs, field.Invalid(at.Child("statuses").Key(code), code, `write a final status code from 200 to 599, such as "422"`))
		}
		errs = append(errs, oneOf(at.Child("statuses").Key(code), responses.Statuses[code], v1alpha1.StatusStore, v1alpha1.StatusRelease)...)
	}
	return errs
}

func validateWindow(at *field.Path, window v1alpha1.Duration) field.ErrorList {
	return validateDuration(at, window, minWindow, maxWindow, "a window is between 1m and 366d")
}

func validateDuration(at *field.Path, d v1alpha1.Duration, least, most time.Duration, bounds string) field.ErrorList {
	parsed, err := d.Parse()
	if err != nil {
		return field.ErrorList{field.Invalid(at, string(d), bounds+": "+err.Error())}
	}
	if parsed < least || parsed > most {
		return field.ErrorList{field.Invalid(at, string(d), bounds)}
	}
	return nil
}

// validateOverlap refuses two routes that one request could match with neither of them being the more specific: which policy applies would be
// a matter of chance. http.ServeMux itself is the judge, as it is in the sidecar.
func validateOverlap(at *field.Path, routes []v1alpha1.Route) field.ErrorList {
	var errs field.ErrorList
	for j, later := range routes {
		for i, earlier := range routes[:j] {
			method, problem := overlap(earlier, later)
			if problem == "" {
				continue
			}
			errs = append(errs, field.Invalid(at.Index(j).Child("path"), later.Path, fmt.Sprintf(
				"route %q overlaps route %q (%s) for %s and neither is more specific: %s; change one of the paths or take %s from one of the routes",
				later.Name, earlier.Name, at.Index(i).Child("path"), method, problem, method)))
		}
	}
	return errs
}

// overlap is the first method for which two routes overlap, and how; "" when they do not, or when one of them is no pattern at all.
func overlap(a, b v1alpha1.Route) (method v1alpha1.Method, problem string) {
	for _, method := range a.Methods {
		for _, other := range b.Methods {
			first, second := string(method)+" "+a.Path, string(method)+" "+b.Path
			if method != other || register(first) != "" || register(second) != "" {
				continue
			}
			if problem := register(first, second); problem != "" {
				return method, problem
			}
		}
	}
	return "", ""
}

// register registers patterns on a ServeMux and returns what it says against it; "" when it is content.
func register(patterns ...string) (problem string) {
	defer func() {
		if recovered := recover(); recovered != nil {
			problem = conflict(fmt.Sprint(recovered))
		}
	}()
	mux := http.NewServeMux()
	for _, pattern := range patterns {
		mux.Handle(pattern, http.NotFoundHandler())
	}
	return ""
}

// conflict is the reason in ServeMux's message, without the places in the source where the patterns were registered.
func conflict(message string) string {
	if _, reason, found := strings.Cut(message, ":\n"); found {
		message = reason
	}
	if _, reason, found := strings.Cut(message, ": "); found && strings.HasPrefix(message, "parsing ") {
		message = reason
	}
	return strings.Join(strings.Fields(message), " ")
}
