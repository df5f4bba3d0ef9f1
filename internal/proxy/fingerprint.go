// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"crypto/sha256"
	"encoding/binary"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// canonicalBytes is the largest body that is compared by content; larger ones are compared byte by byte. It is no setting: a retry may meet
// another process, which must come to the same fingerprint.
const canonicalBytes = 1 << 20

// fingerprint is what makes two requests the same: methods, target, media type, content encoding, the route's chosen headers and the body.
// Every part carries its length, so that no two lists of parts run together into the same bytes.
func (rt *route) fingerprint(r *http.Request, body *spooled) keystore.Fingerprint {
	h := make(parts, 0, 512)
	h.add("v1")
	h.list(methods(r))
	h.add(r.URL.EscapedPath())
	h.list(sortedQuery(r.URL.RawQuery))
	mediaType, json := mediaTypeOf(r.Header)
	h.add(mediaType)
	h.list(r.Header["Content-Encoding"])
	for _, name := range rt.FingerprintHeaders {
		h.add(name)
		h.list(field(r, name))
	}
	form, digest := "raw", body.digest
	if rt.CanonicalJSON && json && len(r.Header["Content-Encoding"]) == 0 {
		if document, ok := body.bytes(canonicalBytes); ok {
			if canonical, ok := canonicalJSON(document, rt.pointers); ok {
				form, digest = "json", sha256.Sum256(canonical)
			}
		}
	}
	h.add(form)
	h.add(string(digest[:]))
	return sha256.Sum256(h)
}

// field is the values of a request's header field. Host, which net/http keeps apart, is one of them, and its case does not count.
func field(r *http.Request, name string) []string {
	if name == "Host" {
		return []string{strings.ToLower(r.Host)}
	}
	return r.Header[name]
}

// parts are strings, each behind its length, and lists, each behind its count.
type parts []byte

func (p *parts) add(part string) {
	*p = append(binary.BigEndian.AppendUint64(*p, uint64(len(part))), part...)
}

func (p *parts) list(list []string) {
	*p = binary.BigEndian.AppendUint64(*p, uint64(len(list)))
	for _, part := range list {
		p.add(part)
	}
}

// sortedQuery is the query's pairs by name; pairs of one name keep their order.
func sortedQuery(query string) []string {
	if query == "" {
		return nil
	}
	pairs := strings.Split(query, "&")
	slices.SortStableFunc(pairs, func(a, b string) int {
		nameA, _, _ := strings.Cut(a, "=")
		nameB, _, _ := strings.Cut(b, "=")
		return strings.Compare(nameA, nameB)
	})
	return pairs
}

// mediaTypeOf is the media type in one spelling, or the field as it is when it is none.
func mediaTypeOf(header http.Header) (spelled string, json bool) {
	field := strings.Join(header["Content-Type"], ",")
	mediaType, parameters, err := mime.ParseMediaType(field)
	if err != nil {
		return field, false
	}
	json = isJSON(mediaType, parameters["charset"])
	if spelled = mime.FormatMediaType(mediaType, parameters); spelled != "" {
		return spelled, json
	}
	return field, json
}

// isJSON is for application/json and every +json type in UTF-8, the only encoding of JSON: https://www.rfc-editor.org/rfc/rfc8259#section-8.1
func isJSON(mediaType, charset string) bool {
	if mediaType != "application/json" && !strings.HasSuffix(mediaType, "+json") {
		return false
	}
	return charset == "" || strings.EqualFold(charset, "utf-8")
}
