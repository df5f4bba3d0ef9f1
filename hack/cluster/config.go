// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"embed"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
)

// The addresses are the ones kubeadm users know, except for the pods' network: the bridge's, which is also the node's.
const (
	nodeName          = "local"
	nodeAddress       = "10.88.0.1"
	podNetwork        = "10.88.0.0/16"
	serviceNetwork    = "10.96.0.0/16"
	apiServiceAddress = "10.96.0.1"
	dnsAddress        = "10.96.0.10"
	clusterDomain     = "cluster.local"
	apiPort           = 6443
)

//go:embed templates
var templates embed.FS

// settings is what the templates may use.
type settings struct {
	State, Run, PodLogs, CNI, Resolver                            string
	Socket, Authority                                             string
	NodeAddress, PodNetwork, DNSAddress, ClusterDomain, PauseName string
	Bridge                                                        string
}

func newSettings(l layout, cni, resolver string) settings {
	return settings{
		State: l.state, Run: l.run, PodLogs: l.podLogs(), CNI: cni, Resolver: resolver,
		Socket: l.containerdSocket(), Authority: l.certificate("ca.crt"),
		NodeAddress: nodeAddress, PodNetwork: podNetwork, DNSAddress: dnsAddress, ClusterDomain: clusterDomain,
		PauseName: imageName("pause"), Bridge: bridge,
	}
}

func render(name string, data any) ([]byte, error) {
	t, err := template.New(name).Option("missingkey=error").ParseFS(templates, "templates/"+name)
	if err != nil {
		return nil, fmt.Errorf("parse template %s: %w", name, err)
	}
	var out bytes.Buffer
	if err := t.Execute(&out, data); err != nil {
		return nil, fmt.Errorf("render %s: %w", name, err)
	}
	return out.Bytes(), nil
}

// writeConfigs renders every component's configuration.
func writeConfigs(l layout, s settings) error {
	for name, target := range map[string]string{
		"containerd.toml": l.config("containerd.toml"),
		"kubelet.yaml":    l.config("kubelet.yaml"),
		"kube-proxy.yaml": l.config("kube-proxy.yaml"),
		"cni.json":        filepath.Join(l.config("cni"), "10-"+bridge+".conflist"),
	} {
		data, err := render(name, s)
		if err != nil {
			return err
		}
		if err := writeFile(target, data, 0o600); err != nil {
			return err
		}
	}
	for _, name := range []string{"controller-manager", "scheduler", "kube-proxy", "kubelet"} {
		if err := writeKubeconfig(l, name, l.config(name+".kubeconfig")); err != nil {
			return err
		}
	}
	return writeKubeconfig(l, "admin", l.kubeconfig())
}

// writeKubeconfig embeds the certificates, so that the file can be copied to another place.
func writeKubeconfig(l layout, identity, path string) error {
	authority, err := os.ReadFile(l.certificate("ca.crt"))
	if err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	pair, err := os.ReadFile(l.certificate(identity + ".pem"))
	if err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	data, err := render("kubeconfig.yaml", map[string]any{
		"Server":    apiURL(),
		"User":      identity,
		"Authority": base64.StdEncoding.EncodeToString(authority),
		"Pair":      base64.StdEncoding.EncodeToString(pair),
	})
	if err != nil {
		return err
	}
	return writeFile(path, data, 0o600)
}

func apiURL() string { return fmt.Sprintf("https://%s:%d", nodeAddress, apiPort) }
