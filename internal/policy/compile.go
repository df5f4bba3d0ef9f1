// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// Compile returns the sidecar's configuration for p, which it leaves as it is: defaults are applied to a copy.
// Equal policies give equal configurations, whatever the order of their lists. It fails when Validate finds something.
func Compile(p *v1alpha1.IdempotencyPolicy) (proxyconfig.Config, error) {
	p = p.DeepCopy()
	Default(p)
	if err := Validate(p).ToAggregate(); err != nil {
		return proxyconfig.Config{}, fmt.Errorf("compile policy %s: %w", p.Name, err)
	}
	config := proxyconfig.Config{
		Version:  proxyconfig.Version,
		Policy:   proxyconfig.Policy{Namespace: p.Namespace, Name: p.Name, Generation: p.Generation},
		Keyspace: Keyspace(p),
		Mode:     string(p.Spec.Mode),
		Store:    compileStore(p.Spec.Store),
		Client:   compileClient(p.Spec.Client),
	}
	for _, r := range p.Spec.Routes {
		config.Routes = append(config.Routes, compileRoute(r, p.Spec.Retention.Window))
	}
	slices.SortFunc(config.Routes, func(a, b proxyconfig.Route) int { return strings.Compare(a.Name, b.Name) })
	return config, nil
}

func compileStore(s v1alpha1.Store) proxyconfig.Store {
	if s.Redis != nil {
		return proxyconfig.Store{Type: "Redis", MinReplicas: int(s.Redis.MinReplicas), OnUnavailable: string(s.OnUnavailable)}
	}
	return proxyconfig.Store{Type: "Postgres", Schema: s.Postgres.Schema, OnUnavailable: string(s.OnUnavailable)}
}

func compileClient(c v1alpha1.Client) proxyconfig.Client {
	switch {
	case c.Header != "":
		return proxyconfig.Client{
			Type:         "Header",
			Header:       textproto.CanonicalMIMEHeaderKey(c.Header),
			TrustedCIDRs: sortedSet(c.TrustedCIDRs, canonicalCIDR),
		}
	case c.JWT != nil:
		return proxyconfig.Client{Type: "JWT", JWT: &proxyconfig.JWT{
			Issuer: c.JWT.Issuer, Audiences: sortedSet(c.JWT.Audiences, func(audience string) string { return audience }), JWKSURI: c.JWT.JWKSURI, Claim: c.JWT.Claim,
		}}
	case c.Authorization != nil:
		return proxyconfig.Client{Type: "Authorization"}
	default:
		return proxyconfig.Client{Type: "Shared"}
	}
}

// compileRoute compiles a valid route; window is that of routes which name none.
func compileRoute(r v1alpha1.Route, window v1alpha1.Duration) proxyconfig.Route {
	if r.Window != "" {
		window = r.Window
	}
	compiled := proxyconfig.Route{
		Name:                r.Name,
		Methods:             sortedSet(r.Methods, func(m v1alpha1.Method) string { return string(m) }),
		Path:                r.Path,
		KeyRequired:         *r.Key.Required,
		KeyMaxLength:        int(r.Key.MaxLength),
		KeyPattern:          r.Key.Pattern,
		WindowMillis:        millis(window),
		CanonicalJSON:       *r.Fingerprint.CanonicalJSON,
		FingerprintHeaders:  sortedSet(r.Fingerprint.Headers, textproto.CanonicalMIMEHeaderKey),
		FingerprintIgnore:   sortedSet(r.Fingerprint.Ignore, func(pointer string) string { return pointer }),
		InFlight:            string(r.InFlight.Mode),
		MaxWaitMillis:       millis(r.InFlight.MaxWait),
		OnUnknownOutcome:    string(r.OnUnknownOutcome),
		ReconcilePath:       r.ReconcilePath,
		ReplayAuthorization: r.ReplayAuthorization,
		ResponseMaxBytes:    r.Responses.MaxBytes.Value(),
		ResponseHeaders:     sortedSet(r.Responses.Headers, textproto.CanonicalMIMEHeaderKey),
		StatusRules:         compileStatuses(r.Responses.Statuses),
		TimeoutMillis:       millis(r.Timeout),
	}
	if r.Responses.Store == v1alpha1.ResponseReference {
		compiled.ResponseStore = proxyconfig.ResponseReference
	}
	compileKeySource(r.Key.Source, &compiled)
	return compiled
}

func compileKeySource(source v1alpha1.KeySource, compiled *proxyconfig.Route) {
	switch {
	case source.CloudEvent != nil:
		compiled.KeySource = proxyconfig.KeyCloudEvent
	case source.JSONPointer != "":
		compiled.KeySource, compiled.KeyPointer = proxyconfig.KeyJSONPointer, source.JSONPointer
	case source.Fingerprint != nil:
		compiled.KeySource = proxyconfig.KeyFingerprint
	default:
		compiled.KeyHeader = textproto.CanonicalMIMEHeaderKey(source.Header)
	}
}

func compileStatuses(statuses map[string]v1alpha1.StatusRule) map[int]string {
	if len(statuses) == 0 {
		return nil
	}
	rules := make(map[int]string, len(statuses))
	for code, rule := range statuses {
		status, _ := strconv.Atoi(code) // Validate has seen three digits
		rules[status] = string(rule)
	}
	return rules
}

// sortedSet is the canonical forms of values, sorted, each once; nil when there are none.
func sortedSet[T any](values []T, canonical func(T) string) []string {
	var set []string
	for _, v := range values {
		set = append(set, canonical(v))
	}
	slices.Sort(set)
	return slices.Compact(set)
}

// canonicalCIDR is a valid CIDR with its host bits cleared, in the one form in which netip writes it.
func canonicalCIDR(cidr string) string {
	prefix, _ := netip.ParsePrefix(cidr) // Validate has parsed it
	return prefix.Masked().String()
}

// millis is d, which Validate has parsed, in whole milliseconds.
func millis(d v1alpha1.Duration) int64 {
	parsed, _ := d.Parse()
	return int64(parsed / time.Millisecond)
}
