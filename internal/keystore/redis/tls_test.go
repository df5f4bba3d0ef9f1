// SPDX-License-Identifier: Apache-2.0

package redis_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/redis"
	"github.com/idempotency-dev/operator/internal/localredis"
	"github.com/idempotency-dev/operator/internal/localredis/redistest"
)

// TestTLS: with the authority that signed the server's certificate, and with nothing else.
func TestTLS(t *testing.T) {
	files, authority := certificate(t)
	server := redistest.Start(t, localredis.Options{TLS: &files})
	_, stranger := certificate(t)
	dsn := func(ca []byte) string {
		return "rediss://" + server.Addr() + "?ca=" + url.QueryEscape(base64.StdEncoding.EncodeToString(ca))
	}
	ensure(t, dsn(authority), "")
	s := open(t, redis.Config{DSN: dsn(authority)})
	r := request("key")
	expect(t, s, r, keystore.New)
	must(t, s.Complete(t.Context(), owner(r), created()))

	refuses(t, open(t, redis.Config{DSN: dsn(stranger)}).Check(t.Context()), keystore.ErrUnavailable, keystore.ErrTLSFailed)
	refuses(t, open(t, redis.Config{DSN: "rediss://" + server.Addr()}).Check(t.Context()), keystore.ErrUnavailable, keystore.ErrTLSFailed)
	refuses(t, open(t, redis.Config{DSN: "redis://" + server.Addr()}).Check(t.Context()), keystore.ErrUnavailable)
	plain := redistest.Start(t, localredis.Options{})
	refuses(t, open(t, redis.Config{DSN: "rediss://" + plain.Addr()}).Check(t.Context()), keystore.ErrUnavailable)
}

// certificate makes one that signs itself, for 127.0.0.1.
func certificate(t *testing.T) (localredis.TLS, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redis"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	secret, err := x509.MarshalECPrivateKey(key)
	must(t, err)
	dir := t.TempDir()
	write := func(name, kind string, bytes []byte) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600))
		return path
	}
	public := write("tls.crt", "CERTIFICATE", der)
	return localredis.TLS{Certificate: public, Key: write("tls.key", "EC PRIVATE KEY", secret), Authorities: public},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
