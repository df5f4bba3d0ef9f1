// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"time"
)

// maxAuthorities bounds a bundle: the newest, and those that replicas may still serve under. A new one comes within seconds of the last only
// when the Secret is deleted while no replica that runs has a certificate in memory, so that none of those is ever the oldest of so many.
const maxAuthorities = 16

// trust returns bundle with authority in it, and whether that changed anything. Authorities that have expired are dropped on the way, and the
// oldest when there are too many; the others stay, since a replica may still serve under one of them.
func trust(bundle, authority []byte, now time.Time) ([]byte, bool) {
	block, _ := pem.Decode(authority)
	known := parseBundle(bundle)
	if block == nil || slices.ContainsFunc(known, func(c *x509.Certificate) bool { return bytes.Equal(c.Raw, block.Bytes) }) {
		return bundle, false
	}
	known = slices.DeleteFunc(known, func(c *x509.Certificate) bool { return now.After(c.NotAfter) })
	slices.SortStableFunc(known, func(a, b *x509.Certificate) int { return a.NotBefore.Compare(b.NotBefore) })
	known = known[max(0, len(known)-(maxAuthorities-1)):]
	var out bytes.Buffer
	for _, c := range known {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
	}
	out.Write(authority)
	return out.Bytes(), true
}

// parseBundle returns the certificates of a bundle that can be read.
func parseBundle(bundle []byte) []*x509.Certificate {
	var known []*x509.Certificate
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			known = append(known, c)
		}
	}
	return known
}
