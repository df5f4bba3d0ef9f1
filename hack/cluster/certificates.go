// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"slices"
	"time"
)

const (
	authorityLife   = 10 * 365 * 24 * time.Hour
	certificateLife = 365 * 24 * time.Hour
	renewBefore     = 30 * 24 * time.Hour
)

// identity is one key pair of the cluster. Every one may serve, where it has names or addresses, and authenticate.
type identity struct {
	name      string // of the file: certificate and key together, so that a kill cannot leave one that does not fit the other
	authority string // who issues it
	user      string
	groups    []string
	names     []string
	addresses []string
}

// The authorities. The second one vouches for the API server as a front proxy to others, which may then speak for any
// user: the first one's clients must not be able to.
const (
	clusterAuthority    = "ca"
	frontProxyAuthority = "front-proxy-ca"
)

func identities() []identity {
	local := []string{"localhost"}
	loopback := []string{"127.0.0.1"}
	return []identity{
		{name: "front-proxy", authority: frontProxyAuthority, user: frontProxyUser},
		{name: "admin", authority: clusterAuthority, user: "admin", groups: []string{"system:masters"}},
		{name: "etcd", authority: clusterAuthority, user: "etcd", names: local, addresses: loopback},
		{
			name: "apiserver", authority: clusterAuthority, user: "kube-apiserver", groups: []string{"system:masters"},
			names: []string{
				"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + clusterDomain,
			},
			addresses: []string{"127.0.0.1", nodeAddress, apiServiceAddress},
		},
		{name: "controller-manager", authority: clusterAuthority, user: "system:kube-controller-manager", names: local, addresses: loopback},
		{name: "scheduler", authority: clusterAuthority, user: "system:kube-scheduler", names: local, addresses: loopback},
		{name: "kube-proxy", authority: clusterAuthority, user: "system:kube-proxy"},
		{
			name: "kubelet", authority: clusterAuthority, user: "system:node:" + nodeName, groups: []string{"system:nodes"},
			names: []string{nodeName}, addresses: []string{nodeAddress},
		},
	}
}

// keyPair is a certificate and its key.
type keyPair struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

func (p keyPair) encode() ([]byte, error) {
	key, err := x509.MarshalPKCS8PrivateKey(p.key)
	if err != nil {
		return nil, err
	}
	out := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.certificate.Raw})
	return append(out, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...), nil
}

func decodeKeyPair(data []byte) (keyPair, error) {
	var pair keyPair
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		var err error
		switch block.Type {
		case "CERTIFICATE":
			pair.certificate, err = x509.ParseCertificate(block.Bytes)
		case "PRIVATE KEY":
			var key any
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
			pair.key, _ = key.(crypto.Signer)
		}
		if err != nil {
			return keyPair{}, err
		}
	}
	if pair.certificate == nil || pair.key == nil {
		return keyPair{}, errors.New("certificate or key is missing")
	}
	return pair, nil
}

// ensureCertificates makes the authorities, one pair per identity and the key that signs service account tokens, and
// keeps what is there while it is good: components restart only when their files change.
func ensureCertificates(l layout, now time.Time) error {
	authorities := map[string]keyPair{}
	for _, name := range []string{clusterAuthority, frontProxyAuthority} {
		authority, err := ensurePair(l.certificate(name+".pem"), func(p keyPair) bool { return fresh(p.certificate, now) },
			func() (keyPair, error) { return newAuthority(name, now) })
		if err != nil {
			return err
		}
		authorities[name] = authority
		// The certificate alone: components read it to trust, and the controller manager publishes it to every namespace.
		public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.certificate.Raw})
		if err := writeFile(l.certificate(name+".crt"), public, 0o644); err != nil {
			return err
		}
	}
	for _, id := range identities() {
		authority := authorities[id.authority]
		good := func(p keyPair) bool { return id.matches(p.certificate, authority.certificate, now) }
		if _, err := ensurePair(l.certificate(id.name+".pem"), good, func() (keyPair, error) { return id.issue(authority, now) }); err != nil {
			return err
		}
	}
	return ensureTokenKey(l.certificate("service-accounts.key"))
}

func ensurePair(path string, good func(keyPair) bool, issue func() (keyPair, error)) (keyPair, error) {
	if data, err := os.ReadFile(path); err == nil {
		if pair, err := decodeKeyPair(data); err == nil && good(pair) {
			return pair, nil
		}
	}
	pair, err := issue()
	if err != nil {
		return keyPair{}, fmt.Errorf("issue certificate %s: %w", path, err)
	}
	data, err := pair.encode()
	if err != nil {
		return keyPair{}, fmt.Errorf("encode certificate %s: %w", path, err)
	}
	return pair, writeFile(path, data, 0o600)
}

// ensureTokenKey keeps an existing key: pods hold tokens that it signed.
func ensureTokenKey(path string) error {
	if data, err := os.ReadFile(path); err == nil {
		if block, _ := pem.Decode(data); block != nil {
			return nil
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make token key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode token key: %w", err)
	}
	return writeFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}

func newAuthority(name string, now time.Time) (keyPair, error) {
	return sign(&x509.Certificate{
		Subject:               pkix.Name{CommonName: "idempotency-operator local " + name},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(authorityLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}, nil)
}

func (id identity) issue(authority keyPair, now time.Time) (keyPair, error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: id.user, Organization: id.groups},
		NotBefore:   now.Add(-time.Hour),
		NotAfter:    now.Add(certificateLife),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		DNSNames:    id.names,
	}
	for _, address := range id.addresses {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(address))
	}
	if len(id.names)+len(id.addresses) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	return sign(template, &authority)
}

// sign makes a key and its certificate; without a parent it signs itself.
func sign(template *x509.Certificate, parent *keyPair) (keyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return keyPair{}, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return keyPair{}, err
	}
	if parent == nil {
		parent = &keyPair{certificate: template, key: key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent.certificate, key.Public(), parent.key)
	if err != nil {
		return keyPair{}, err
	}
	certificate, err := x509.ParseCertificate(der)
	return keyPair{certificate: certificate, key: key}, err
}

// matches reports whether a certificate is what issue would make, with time left.
func (id identity) matches(c, authority *x509.Certificate, now time.Time) bool {
	var addresses []string
	for _, ip := range c.IPAddresses {
		addresses = append(addresses, ip.String())
	}
	return fresh(c, now) && c.CheckSignatureFrom(authority) == nil && bytes.Equal(c.RawIssuer, authority.RawSubject) &&
		c.Subject.CommonName == id.user && slices.Equal(c.Subject.Organization, id.groups) &&
		slices.Equal(c.DNSNames, id.names) && slices.Equal(addresses, id.addresses)
}

func fresh(c *x509.Certificate, now time.Time) bool {
	return !now.Before(c.NotBefore) && now.Add(renewBefore).Before(c.NotAfter)
}
