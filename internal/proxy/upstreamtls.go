// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/netip"
	"net/url"
	"os"
)

// upstreamTLS is how an https upstream is verified: against the authorities in the file ca, or the system's, by name or the URL's host. One on the
// loopback is not verified unless ca or name ask for it: the connection leaves neither the pod nor the machine, and no certificate names 127.0.0.1.
func upstreamTLS(u *url.URL, ca, name string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name}
	if ca == "" && name == "" {
		address, err := netip.ParseAddr(u.Hostname())
		config.InsecureSkipVerify = u.Hostname() == "localhost" || err == nil && address.IsLoopback()
		return config, nil
	}
	if ca == "" {
		return config, nil
	}
	text, err := os.ReadFile(ca) //nolint:gosec // the operator's own file
	if err != nil {
		return nil, fmt.Errorf("read upstream-ca: %w", err)
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("read upstream-ca %s: there is no certificate in it", ca)
	}
	return config, nil
}
