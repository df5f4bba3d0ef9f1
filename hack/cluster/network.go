// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// bridge is the pods' network, and the node's own address: pods reach the API server and the host reaches pods through it.
const bridge = "idempotency0"

// natTable lets pods reach what the host reaches.
const natTable = `
table ip idempotency-operator {}
delete table ip idempotency-operator
table ip idempotency-operator {
	chain postrouting {
		type nat hook postrouting priority srcnat;
		ip saddr ` + podNetwork + ` ip daddr != ` + podNetwork + ` masquerade
	}
}
`

// setUpNetwork makes the bridge and its rules, or completes what an interrupted run left.
func setUpNetwork(ctx context.Context) error {
	if err := checkAddressFree(ctx); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join("/sys/class/net", bridge)); errors.Is(err, os.ErrNotExist) {
		// With a hardware address of its own the bridge keeps it when pods come and go.
		if _, err := command(ctx, nil, "ip", "link", "add", bridge, "address", "0a:58:0a:58:00:01", "type", "bridge"); err != nil {
			return fmt.Errorf("add bridge: %w", err)
		}
	}
	for _, args := range [][]string{
		{"address", "replace", nodeAddress + "/16", "dev", bridge},
		{"link", "set", bridge, "up"},
		// The API server calls webhooks by cluster address: this works without a default route, too.
		{"route", "replace", serviceNetwork, "dev", bridge, "src", nodeAddress},
	} {
		if _, err := command(ctx, nil, "ip", args...); err != nil {
			return fmt.Errorf("set up bridge: %w", err)
		}
	}
	if _, err := command(ctx, strings.NewReader(natTable), "nft", "-f", "-"); err != nil {
		return fmt.Errorf("set up address translation: %w", err)
	}
	return setKernelSwitches(ctx)
}

// setKernelSwitches turns on forwarding, and makes bridged packets pass the rules of kube-proxy: without it the answer
// of one pod to another, called through a service, is not translated back.
func setKernelSwitches(ctx context.Context) error {
	const bridged = "/proc/sys/net/bridge/bridge-nf-call-iptables"
	if _, err := os.Stat(bridged); err != nil {
		if _, err := command(ctx, nil, "modprobe", "br_netfilter"); err != nil {
			return fmt.Errorf("load kernel module br_netfilter: %w", err)
		}
	}
	for _, path := range []string{"/proc/sys/net/ipv4/ip_forward", bridged} {
		if data, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(data)) == "1" {
			continue
		}
		if err := os.WriteFile(path, []byte("1"), 0o644); err != nil {
			return fmt.Errorf("set %s: %w", path, err)
		}
	}
	return nil
}

// checkAddressFree refuses to share the pods' network with another bridge: podman uses the same range by default.
func checkAddressFree(ctx context.Context) error {
	out, err := command(ctx, nil, "ip", "-json", "-4", "address", "show", "to", podNetwork)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	owner, err := otherOwner([]byte(out))
	if err != nil {
		return err
	}
	if owner != "" {
		return fmt.Errorf("set up network: %s is in use by interface %s; remove it first", podNetwork, owner)
	}
	return nil
}

// otherOwner finds, in the output of `ip -json address show to NETWORK`, an interface that is not our bridge.
func otherOwner(addresses []byte) (string, error) {
	var links []struct {
		Name string `json:"ifname"` // empty for an interface without a matching address
	}
	if len(addresses) == 0 {
		return "", nil
	}
	if err := json.Unmarshal(addresses, &links); err != nil {
		return "", fmt.Errorf("parse addresses: %w", err)
	}
	for _, link := range links {
		if link.Name != "" && link.Name != bridge {
			return link.Name, nil
		}
	}
	return "", nil
}

// tearDownNetwork removes the bridge, our rules and those that kube-proxy leaves behind.
func tearDownNetwork(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join("/sys/class/net", bridge)); err == nil {
		if _, err := command(ctx, nil, "ip", "link", "delete", bridge); err != nil {
			return fmt.Errorf("delete bridge: %w", err)
		}
	}
	tables := "table ip idempotency-operator {}\ndelete table ip idempotency-operator\n" +
		"table ip kube-proxy {}\ndelete table ip kube-proxy\ntable ip6 kube-proxy {}\ndelete table ip6 kube-proxy\n"
	if _, err := command(ctx, strings.NewReader(tables), "nft", "-f", "-"); err != nil {
		return fmt.Errorf("delete rules: %w", err)
	}
	return nil
}

// unmountBelow unmounts everything under the directories, deepest first, and fails when something stays: whoever
// deletes the directories afterwards must not delete through a mount.
func unmountBelow(dirs ...string) error {
	mounts, err := mountsBelow(dirs...)
	if err != nil {
		return err
	}
	for _, path := range mounts {
		if err := syscall.Unmount(path, unmountDetach); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	left, err := mountsBelow(dirs...)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("unmount: %d mounts are left, the first is %s", len(left), left[0])
	}
	return nil
}

// unmountDetach is MNT_DETACH of umount(2), which only Linux's syscall package has a name for.
const unmountDetach = 2

func mountsBelow(dirs ...string) ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return parseMounts(string(data), dirs...), nil
}

// parseMounts returns the mount points at or below dirs, latest first: see proc_pid_mountinfo(5).
func parseMounts(mountinfo string, dirs ...string) []string {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var found []string
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		at := unescape.Replace(fields[4])
		for _, dir := range dirs {
			if at == dir || strings.HasPrefix(at, dir+"/") {
				found = append(found, at)
				break
			}
		}
	}
	slices.Reverse(found)
	return found
}
