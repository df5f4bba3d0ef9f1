// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// node is a cluster of one node whose components are processes of this machine.
type node struct {
	layout layout
	say    *progress
	lock   *os.File // held while the cluster is changed; components in the making inherit it

	stopPatience time.Duration // how long a component may take to end before it is killed
}

// up brings the node to what the layout's sources say, from whatever an earlier run left.
func (n *node) up(ctx context.Context) error {
	plugins, err := prepareHost(ctx, n.say)
	if err != nil {
		return err
	}
	if err := buildAll(ctx, n.layout, n.say); err != nil {
		return err
	}
	if err := n.claim(); err != nil {
		return err
	}
	if err := ensureCertificates(n.layout, time.Now()); err != nil {
		return err
	}
	if err := writeConfigs(n.layout, newSettings(n.layout, plugins, hostResolver())); err != nil {
		return err
	}
	if err := setUpNetwork(ctx); err != nil {
		return err
	}
	if err := n.startComponents(ctx); err != nil {
		return err
	}
	if err := n.awaitReady(ctx); err != nil {
		return err
	}
	n.say.step("ready: export KUBECONFIG=%s", n.layout.kubeconfig())
	return nil
}

// startComponents starts what does not run yet, in the order in which they need each other.
func (n *node) startComponents(ctx context.Context) error {
	c := n.components()
	if err := n.ensure(ctx, c.etcd, c.containerd); err != nil {
		return err
	}
	if err := n.ensureStarted(ctx, c.apiserver); err != nil {
		return err
	}
	images, err := buildNodeImages(ctx, n.layout, n.say)
	if err != nil {
		return err
	}
	if err := n.load(ctx, images); err != nil {
		return err
	}
	if err := n.awaitProcess(ctx, c.apiserver); err != nil {
		return err
	}
	if err := n.ensure(ctx, c.controllerManager, c.scheduler, c.kubelet, c.kubeProxy); err != nil {
		return err
	}
	return n.applyDNS(ctx, images)
}

// lockFile is one for the machine, which has room for one node, and outlives the run directory.
func (n *node) lockFile() string { return n.layout.run + ".lock" }

// owner says whose the run directory is.
type owner struct {
	Boot  string `json:"boot"`
	State string `json:"state"` // the state directory of the node
}

// claim makes the run directory ours. It refuses to disturb a node that was started with another state directory, and
// clears what an earlier boot left: its mounts and processes are gone, and what it recorded would mislead containerd.
func (n *node) claim() error {
	boot, err := bootID()
	if err != nil {
		return fmt.Errorf("read boot id: %w", err)
	}
	data, err := os.ReadFile(n.layout.ownerFile())
	var last owner
	if err == nil && json.Unmarshal(data, &last) == nil && last.Boot == boot {
		if last.State != n.layout.state {
			return fmt.Errorf("claim %s: a node with its state in %s uses it; take that down first, with its XDG_STATE_HOME", n.layout.run, last.State)
		}
		return nil
	}
	if err := n.removeDirectory(n.layout.run); err != nil {
		return err
	}
	if data, err = json.Marshal(owner{Boot: boot, State: n.layout.state}); err != nil {
		return fmt.Errorf("claim %s: %w", n.layout.run, err)
	}
	return writeFile(n.layout.ownerFile(), data, 0o600)
}

// applyDNS installs CoreDNS, and rolls it out anew when its image changed.
func (n *node) applyDNS(ctx context.Context, images []image) error {
	at := slices.IndexFunc(images, func(i image) bool { return i.name == "coredns" })
	digest, err := images[at].digest()
	if err != nil {
		return err
	}
	manifest, err := render("coredns.yaml", map[string]string{
		"ClusterDomain": clusterDomain, "DNSAddress": dnsAddress, "Image": imageName("coredns"), "Digest": digest,
	})
	if err != nil {
		return err
	}
	n.say.step("installing CoreDNS")
	return n.say.await(ctx, "CoreDNS to be accepted", func(ctx context.Context) error {
		_, err := command(ctx, strings.NewReader(string(manifest)), n.layout.binary("kubectl"),
			"--kubeconfig", n.layout.kubeconfig(), "apply", "--server-side", "--force-conflicts", "-f", "-")
		return err
	})
}

// awaitReady waits for what a user's first `kubectl apply` needs.
func (n *node) awaitReady(ctx context.Context) error {
	kubectl := func(args ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := n.kubectl(ctx, args...)
			return err
		}
	}
	for _, condition := range []struct {
		what  string
		check func(context.Context) error
	}{
		{"the node to be ready", kubectl("wait", "--for=condition=Ready", "node/"+nodeName, "--timeout=5s")},
		{"the default service account", kubectl("-n", "default", "get", "serviceaccount", "default")},
		{"the cluster's DNS to answer", resolve},
	} {
		n.say.step("waiting for %s", condition.what)
		if err := n.say.await(ctx, condition.what, condition.check); err != nil {
			return err
		}
	}
	return nil
}

// resolve asks the cluster's DNS, by its service address: after a reboot the Deployment's status is still that of the
// last boot.
func resolve(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(dnsAddress, "53"))
	}}
	_, err := resolver.LookupHost(ctx, "kubernetes.default.svc."+clusterDomain+".")
	return err
}

func (n *node) kubectl(ctx context.Context, args ...string) (string, error) {
	return command(ctx, nil, n.layout.binary("kubectl"), append([]string{"--kubeconfig", n.layout.kubeconfig()}, args...)...)
}

// down stops and removes everything that up makes, whatever state it is in. A second run completes an interrupted one.
func (n *node) down(ctx context.Context) error {
	if _, err := prepareHost(ctx, n.say); err != nil {
		return err
	}
	if err := n.claim(); err != nil {
		return err
	}
	c := n.components()
	for _, p := range []process{c.kubelet, c.kubeProxy, c.scheduler, c.controllerManager, c.containerd} {
		if err := n.stopComponent(ctx, p); err != nil {
			return err
		}
	}
	n.say.step("stopping containers")
	if err := n.killContainers(ctx); err != nil {
		return err
	}
	for _, p := range []process{c.apiserver, c.etcd} {
		if err := n.stopComponent(ctx, p); err != nil {
			return err
		}
	}
	n.say.step("removing network and files")
	if err := tearDownNetwork(ctx); err != nil {
		return err
	}
	removeCgroups()
	if err := n.removeStrays(); err != nil {
		return err
	}
	// The records go last: while they exist, an interrupted run can be completed.
	for _, dir := range []string{n.layout.state, n.layout.run} {
		if err := n.removeDirectory(dir); err != nil {
			return err
		}
	}
	n.say.step("the cluster is down; the binaries stay in %s", n.layout.cache)
	return nil
}

func (n *node) stopComponent(ctx context.Context, p process) error {
	if r, ok := readRecord(n.layout.record(p.name)); ok && r.alive() {
		n.say.step("stopping %s", p.name)
	}
	return n.stop(ctx, n.layout.record(p.name))
}

// removeDirectory unmounts what is below dir, then deletes it.
func (n *node) removeDirectory(dir string) error {
	if !filepath.IsAbs(dir) || filepath.Dir(dir) == "/" {
		return errors.New("remove directory: refusing " + dir)
	}
	if err := unmountBelow(dir); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

func (n *node) pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(pollInterval):
		return nil
	}
}
