// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// lifetime of a pair, and how much of it is left when the next one is made.
	lifetime = 365 * 24 * time.Hour
	renewal  = lifetime / 3
	// backdated keeps a pair valid on machines whose clocks run a little late.
	backdated = time.Hour

	authorityKeyName = "ca.crt"
)

// pair is a serving certificate with the authority that signed it. The authority signs nothing else: its key is thrown away.
type pair struct {
	authority   []byte // PEM
	certificate []byte // PEM
	key         []byte // PEM
	serving     *tls.Certificate
}

// newPair makes a pair for a server that goes by names.
func newPair(names []string, now time.Time) (*pair, error) {
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key of authority: %w", err)
	}
	authority, err := template("idempotency-operator webhook authority", now)
	if err != nil {
		return nil, err
	}
	authority.IsCA, authority.BasicConstraintsValid, authority.KeyUsage = true, true, x509.KeyUsageCertSign
	authorityDER, err := x509.CreateCertificate(rand.Reader, authority, authority, authorityKey.Public(), authorityKey)
	if err != nil {
		return nil, fmt.Errorf("sign authority: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make serving key: %w", err)
	}
	leaf, err := template(names[0], now)
	if err != nil {
		return nil, err
	}
	leaf.DNSNames, leaf.KeyUsage, leaf.ExtKeyUsage = names, x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, authority, key.Public(), authorityKey)
	if err != nil {
		return nil, fmt.Errorf("sign serving certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode serving key: %w", err)
	}
	return parsePair(map[string][]byte{
		authorityKeyName:        pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authorityDER}),
		corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leafDER}),
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}, names, now)
}

func template(name string, now time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("choose serial number: %w", err)
	}
	// Distinct subjects keep verifiers from trying one authority's certificate for another's.
	subject := pkix.Name{CommonName: name, SerialNumber: serial.String()}
	return &x509.Certificate{SerialNumber: serial, Subject: subject, NotBefore: now.Add(-backdated), NotAfter: now.Add(lifetime)}, nil
}

// parsePair reads a pair from the data of a Secret. It fails when the pair would not convince a client that trusts its authority.
func parsePair(data map[string][]byte, names []string, now time.Time) (*pair, error) {
	p := &pair{authority: data[authorityKeyName], certificate: data[corev1.TLSCertKey], key: data[corev1.TLSPrivateKeyKey]}
	serving, err := tls.X509KeyPair(p.certificate, p.key)
	if err != nil {
		return nil, errors.New("certificate and key do not fit each other or cannot be read") // the cause may quote the key
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(p.authority) {
		return nil, errors.New("authority cannot be read")
	}
	for _, name := range names {
		if _, err := serving.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: now}); err != nil {
			return nil, fmt.Errorf("verify certificate for %s: %w", name, err)
		}
	}
	p.serving = &serving
	return p, nil
}

// data is the pair as a Secret holds it.
func (p *pair) data() map[string][]byte {
	return map[string][]byte{authorityKeyName: p.authority, corev1.TLSCertKey: p.certificate, corev1.TLSPrivateKeyKey: p.key}
}

func (p *pair) equal(other *pair) bool {
	return other != nil && bytes.Equal(p.certificate, other.certificate)
}

// left is how long the pair stays valid.
func (p *pair) left(now time.Time) time.Duration { return p.serving.Leaf.NotAfter.Sub(now) }
