// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// etcdAddress is not the usual port: an etcd of the user's own may have that.
const etcdAddress = "127.0.0.1:12379"

// frontProxyUser is the only name that the front proxy's authority is believed for.
const frontProxyUser = "front-proxy-client"

// nodeComponents are the processes of the node.
type nodeComponents struct {
	etcd, containerd, apiserver, controllerManager, scheduler, kubelet, kubeProxy process
}

func (c nodeComponents) all() []process {
	return []process{c.etcd, c.containerd, c.apiserver, c.controllerManager, c.scheduler, c.kubelet, c.kubeProxy}
}

func (n *node) components() nodeComponents {
	return nodeComponents{
		etcd:              n.etcd(),
		containerd:        n.containerd(),
		apiserver:         n.apiserver(),
		controllerManager: n.controllerManager(),
		scheduler:         n.scheduler(),
		kubelet:           n.kubelet(),
		kubeProxy:         n.kubeProxy(),
	}
}

func (n *node) etcd() process {
	l := n.layout
	pair := l.certificate("etcd.pem")
	return process{
		name: "etcd",
		argv: []string{
			l.binary("etcd"), "--name=" + nodeName, "--data-dir=" + l.data("etcd"),
			"--listen-client-urls=https://" + etcdAddress, "--advertise-client-urls=https://" + etcdAddress,
			"--listen-peer-urls=http://127.0.0.1:12380", "--initial-advertise-peer-urls=http://127.0.0.1:12380",
			"--initial-cluster=" + nodeName + "=http://127.0.0.1:12380",
			"--cert-file=" + pair, "--key-file=" + pair, "--client-cert-auth", "--trusted-ca-file=" + l.certificate("ca.crt"),
			"--unsafe-no-fsync", "--log-level=warn",
		},
		files: []string{pair, l.certificate("ca.crt")},
		ready: n.answers("https://" + etcdAddress + "/health"),
	}
}

func (n *node) containerd() process {
	l := n.layout
	return process{
		name:  "containerd",
		argv:  []string{l.binary("containerd"), "--config", l.config("containerd.toml"), "--log-level", "warn"},
		files: []string{l.config("containerd.toml"), filepath.Join(l.config("cni"), "10-"+bridge+".conflist")},
		ready: func(ctx context.Context) error {
			_, err := n.ctr(ctx, nil, "version")
			return err
		},
	}
}

func (n *node) apiserver() process {
	l := n.layout
	pair, authority, tokens := l.certificate("apiserver.pem"), l.certificate("ca.crt"), l.certificate("service-accounts.key")
	frontProxyAuthorityFile, frontProxy := l.certificate(frontProxyAuthority+".crt"), l.certificate("front-proxy.pem")
	return process{
		name: "apiserver",
		argv: []string{
			l.binary("kube-apiserver"),
			"--bind-address=" + nodeAddress, "--advertise-address=" + nodeAddress, fmt.Sprintf("--secure-port=%d", apiPort),
			"--tls-cert-file=" + pair, "--tls-private-key-file=" + pair, "--client-ca-file=" + authority,
			"--etcd-servers=https://" + etcdAddress, "--etcd-cafile=" + authority, "--etcd-certfile=" + pair, "--etcd-keyfile=" + pair,
			"--kubelet-client-certificate=" + pair, "--kubelet-client-key=" + pair, "--kubelet-certificate-authority=" + authority,
			"--kubelet-preferred-address-types=InternalIP",
			"--requestheader-client-ca-file=" + frontProxyAuthorityFile, "--requestheader-allowed-names=" + frontProxyUser,
			"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-",
			"--proxy-client-cert-file=" + frontProxy, "--proxy-client-key-file=" + frontProxy,
			"--service-cluster-ip-range=" + serviceNetwork,
			"--service-account-issuer=https://kubernetes.default.svc." + clusterDomain,
			"--service-account-key-file=" + tokens, "--service-account-signing-key-file=" + tokens,
			"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		},
		files: []string{pair, authority, tokens, frontProxyAuthorityFile, frontProxy},
		ready: n.answers(apiURL() + "/readyz"),
	}
}

func (n *node) controllerManager() process {
	l := n.layout
	pair, kubeconfig := l.certificate("controller-manager.pem"), l.config("controller-manager.kubeconfig")
	return process{
		name: "controller-manager",
		argv: []string{
			l.binary("kube-controller-manager"), "--kubeconfig=" + kubeconfig,
			"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
			"--bind-address=127.0.0.1", "--tls-cert-file=" + pair, "--tls-private-key-file=" + pair,
			"--root-ca-file=" + l.certificate("ca.crt"),
			"--cluster-signing-cert-file=" + l.certificate("ca.crt"), "--cluster-signing-key-file=" + l.certificate("ca.pem"),
			"--service-account-private-key-file=" + l.certificate("service-accounts.key"),
			"--use-service-account-credentials", "--leader-elect=false",
			"--flex-volume-plugin-dir=" + l.data("kubelet/plugins"), // it makes this directory; the default is outside ours
		},
		files: []string{pair, kubeconfig, l.certificate("ca.crt"), l.certificate("service-accounts.key")},
		ready: n.answers("https://127.0.0.1:10257/healthz"),
	}
}

func (n *node) scheduler() process {
	l := n.layout
	pair, kubeconfig := l.certificate("scheduler.pem"), l.config("scheduler.kubeconfig")
	return process{
		name: "scheduler",
		argv: []string{
			l.binary("kube-scheduler"), "--kubeconfig=" + kubeconfig,
			"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
			"--bind-address=127.0.0.1", "--tls-cert-file=" + pair, "--tls-private-key-file=" + pair, "--leader-elect=false",
		},
		files: []string{pair, kubeconfig},
		ready: n.answers("https://127.0.0.1:10259/healthz"),
	}
}

func (n *node) kubelet() process {
	l := n.layout
	return process{
		name: "kubelet",
		argv: []string{
			l.binary("kubelet"), "--config=" + l.config("kubelet.yaml"), "--kubeconfig=" + l.config("kubelet.kubeconfig"),
			"--root-dir=" + l.data("kubelet"), "--cert-dir=" + l.data("kubelet-certificates"),
			"--hostname-override=" + nodeName, "--node-ip=" + nodeAddress,
		},
		files: []string{l.config("kubelet.yaml"), l.config("kubelet.kubeconfig"), l.certificate("kubelet.pem"), l.certificate("ca.crt")},
		ready: n.answers("http://127.0.0.1:10248/healthz"),
	}
}

func (n *node) kubeProxy() process {
	l := n.layout
	return process{
		name:  "kube-proxy",
		argv:  []string{l.binary("kube-proxy"), "--config=" + l.config("kube-proxy.yaml"), "--hostname-override=" + nodeName},
		files: []string{l.config("kube-proxy.yaml"), l.config("kube-proxy.kubeconfig")},
		ready: n.answers("http://127.0.0.1:10256/healthz"),
	}
}

// path is the components' PATH: containerd looks there for its shim, which must be the one built with it.
func (n *node) path() string {
	return filepath.Dir(n.layout.binary("containerd")) + ":" + systemPath
}

// ctr talks to our containerd, in the namespace that the kubelet uses.
func (n *node) ctr(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	base := []string{"--address", n.layout.containerdSocket(), "--namespace", "k8s.io"}
	return command(ctx, stdin, n.layout.binary("ctr"), append(base, args...)...)
}

// answers makes a check that a GET of url, as the administrator, returns 200.
func (n *node) answers(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		client, err := n.client()
		if err != nil {
			return err
		}
		defer client.CloseIdleConnections()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(io.LimitReader(response.Body, 4096))
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(body)))
		}
		return err
	}
}

// client trusts the cluster's authority only, and no proxy that the environment names.
func (n *node) client() (*http.Client, error) {
	authority, err := os.ReadFile(n.layout.certificate("ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("read authority: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	admin := n.layout.certificate("admin.pem")
	pair, err := tls.LoadX509KeyPair(admin, admin)
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
	}}, nil
}
