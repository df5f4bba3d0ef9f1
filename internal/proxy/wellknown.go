// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// wellKnownPath is served by the sidecar itself: what draft-ietf-httpapi-idempotency-key-header-07, section 2.6, says that a resource must publish.
const wellKnownPath = "/.well-known/idempotency"

// publication is that document.
type publication struct {
	Specification string           `json:"specification"`
	Mode          string           `json:"mode"`
	Client        string           `json:"client"`
	Routes        []publishedRoute `json:"routes"`
}

type publishedRoute struct {
	Name        string   `json:"name"`
	Methods     []string `json:"methods"`
	Path        string   `json:"path"`
	Key         string   `json:"key"`
	KeyRequired bool     `json:"keyRequired"`
	KeyHeader   string   `json:"keyHeader,omitempty"`
	KeyPointer  string   `json:"keyPointer,omitempty"`
	KeyLength   int      `json:"keyMaxLength"`
	KeyPattern  string   `json:"keyPattern,omitempty"`
	Fingerprint string   `json:"fingerprint"`
	Headers     []string `json:"fingerprintHeaders,omitempty"`
	Ignored     []string `json:"fingerprintIgnore,omitempty"`
	Window      string   `json:"window"`
	InFlight    string   `json:"inFlight"`
	Unknown     string   `json:"onUnknownOutcome"`
	Replay      string   `json:"replay"`
	MaxBytes    int64    `json:"responseMaxBytes"`
}

func publish(c proxyconfig.Config) publication {
	p := publication{Specification: "draft-ietf-httpapi-idempotency-key-header-07", Mode: c.Mode, Client: publishedClient(c.Client)}
	for _, r := range c.Routes {
		p.Routes = append(p.Routes, publishedRoute{
			Name: r.Name, Methods: r.Methods, Path: r.Path,
			Key: publishedKey(r), KeyRequired: r.KeyRequired, KeyHeader: r.KeyHeader, KeyPointer: r.KeyPointer, KeyLength: r.KeyMaxLength, KeyPattern: r.KeyPattern,
			Fingerprint: publishedFingerprint(r), Headers: r.FingerprintHeaders, Ignored: r.FingerprintIgnore,
			Window:   (time.Duration(r.WindowMillis) * time.Millisecond).String(),
			InFlight: r.InFlight, Unknown: r.OnUnknownOutcome, Replay: publishedReplay(r), MaxBytes: r.ResponseMaxBytes,
		})
	}
	return p
}

func publishedClient(c proxyconfig.Client) string {
	switch c.Type {
	case "Header":
		return "the value of " + c.Header
	case "JWT":
		return "the claim " + c.JWT.Claim + " of a verified bearer token (JWT) of " + c.JWT.Issuer
	case "Authorization":
		return "the Authorization header, as a hash"
	default:
		return "all callers are one client"
	}
}

func publishedKey(r proxyconfig.Route) string {
	switch r.KeySource {
	case proxyconfig.KeyCloudEvent:
		return "source and id of a CloudEvent, in binary mode (ce-source, ce-id) or structured (application/cloudevents+json)"
	case proxyconfig.KeyJSONPointer:
		return "the string or integer at " + r.KeyPointer + " (RFC 6901) in the JSON body; printable ASCII"
	case proxyconfig.KeyFingerprint:
		return "none is sent: requests that are the same have one effect while the first is kept"
	}
	return "a quoted string (RFC 9651) or the same text without quotes; printable ASCII"
}

func publishedReplay(r proxyconfig.Route) string {
	if r.ResponseStore == proxyconfig.ResponseReference {
		return "status as recorded, and what the service gives at Location by then; without a Location, the answer as recorded"
	}
	return "the answer as recorded"
}

func publishedFingerprint(r proxyconfig.Route) string {
	if r.CanonicalJSON {
		return "method, path, query, media type, content encoding and body; JSON bodies of up to 1 MiB by content, with the text of numbers; all others byte by byte"
	}
	return "method, path, query, media type, content encoding and body, byte by byte"
}

func (g *generation) serveWellKnown(w http.ResponseWriter, r *http.Request) {
	document := publish(g.config)
	w.Header().Set("Vary", "Accept")
	w.Header().Set("Cache-Control", "no-cache")
	if strings.Contains(r.Header.Get("Accept"), "text/html") {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(document.page()) // the client may be gone: there is nobody to tell
		return
	}
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(document)
}
