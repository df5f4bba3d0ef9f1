// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/x509"
	"net"
	"os"
	"testing"
	"time"
)

func TestCertificatesVerify(t *testing.T) {
	l, now := testLayout(t), time.Now()
	if err := ensureCertificates(l, now); err != nil {
		t.Fatal(err)
	}
	for _, id := range identities() {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(read(t, l.certificate(id.authority+".crt")))
		pair, err := decodeKeyPair(read(t, l.certificate(id.name+".pem")))
		if err != nil {
			t.Fatalf("%s: %v", id.name, err)
		}
		verify := func(name string, usage x509.ExtKeyUsage) {
			t.Helper()
			if _, err := pair.certificate.Verify(x509.VerifyOptions{Roots: pool, DNSName: name, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
				t.Errorf("%s as %q: %v", id.name, name, err)
			}
		}
		verify("", x509.ExtKeyUsageClientAuth)
		for _, name := range append(id.names, id.addresses...) {
			if ip := net.ParseIP(name); ip != nil {
				name = "[" + name + "]" // how VerifyOptions marks an address
			}
			verify(name, x509.ExtKeyUsageServerAuth)
		}
		if got := pair.certificate.Subject.CommonName; got != id.user {
			t.Errorf("%s: common name %q, want %q", id.name, got, id.user)
		}
	}
}

func TestPublishedAuthorityHasNoKey(t *testing.T) {
	l := testLayout(t)
	if err := ensureCertificates(l, time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{clusterAuthority, frontProxyAuthority} {
		if bytes.Contains(read(t, l.certificate(name+".crt")), []byte("KEY")) {
			t.Errorf("%s.crt holds a key", name)
		}
		if info, err := os.Stat(l.certificate(name + ".pem")); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s.pem: mode %v, error %v, want 0600", name, info.Mode(), err)
		}
	}
}

func TestCertificatesAreKeptWhileGood(t *testing.T) {
	start := time.Now()
	for _, row := range []struct {
		reason  string
		change  func(t *testing.T, l layout)
		after   time.Duration
		renewed []string // of admin, etcd and the authority
	}{
		{reason: "nothing changed"},
		{reason: "a day before it is due", after: certificateLife - renewBefore - 24*time.Hour},
		{reason: "due", after: certificateLife - renewBefore, renewed: []string{"admin", "etcd"}},
		{reason: "authority due", after: authorityLife - renewBefore, renewed: []string{"ca", "admin", "etcd"}},
		{reason: "file damaged", renewed: []string{"admin"}, change: func(t *testing.T, l layout) {
			write(t, l.certificate("admin.pem"), []byte("-----BEGIN"))
		}},
		{reason: "key missing", renewed: []string{"admin"}, change: func(t *testing.T, l layout) {
			data := read(t, l.certificate("admin.pem"))
			write(t, l.certificate("admin.pem"), data[:bytes.Index(data, []byte("-----BEGIN PRIVATE"))])
		}},
		{reason: "another identity's file", renewed: []string{"admin"}, change: func(t *testing.T, l layout) {
			write(t, l.certificate("admin.pem"), read(t, l.certificate("etcd.pem")))
		}},
		{reason: "authority lost", renewed: []string{"ca", "admin", "etcd"}, change: func(t *testing.T, l layout) {
			if err := os.Remove(l.certificate("ca.pem")); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(row.reason, func(t *testing.T) {
			l := testLayout(t)
			if err := ensureCertificates(l, start); err != nil {
				t.Fatal(err)
			}
			before := map[string][]byte{}
			for _, name := range []string{"ca", "admin", "etcd"} {
				before[name] = read(t, l.certificate(name+".pem"))
			}
			tokens := read(t, l.certificate("service-accounts.key"))
			if row.change != nil {
				row.change(t, l)
			}
			if err := ensureCertificates(l, start.Add(row.after)); err != nil {
				t.Fatal(err)
			}
			for name, old := range before {
				want := false
				for _, r := range row.renewed {
					want = want || r == name
				}
				if got := !bytes.Equal(old, read(t, l.certificate(name+".pem"))); got != want {
					t.Errorf("%s renewed: %v, want %v", name, got, want)
				}
			}
			if !bytes.Equal(tokens, read(t, l.certificate("service-accounts.key"))) {
				t.Error("the token key changed: every pod's token is void")
			}
		})
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := writeFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
