// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestConfigsStayInTheirDirectories(t *testing.T) {
	l := testLayout(t)
	if err := ensureCertificates(l, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := writeConfigs(l, newSettings(l, "/usr/lib/cni", "/etc/resolv.conf")); err != nil {
		t.Fatal(err)
	}
	// Every absolute path in a configuration is ours, or one that is only read.
	path := regexp.MustCompile(`(?m)(?:^|[\s'"\[:])(/[a-z][^\s'"\]},]*)`)
	readOnly := []string{"/usr/lib/cni", "/etc/resolv.conf"}
	for _, name := range []string{"containerd.toml", "kubelet.yaml", "kube-proxy.yaml", "cni/10-" + bridge + ".conflist"} {
		found := path.FindAllStringSubmatch(string(read(t, l.config(name))), -1)
		if len(found) == 0 {
			t.Errorf("%s names no path", name)
		}
		for _, match := range found {
			inside := strings.HasPrefix(match[1], l.state+"/") || strings.HasPrefix(match[1], l.run+"/")
			if !inside && match[1] != readOnly[0] && match[1] != readOnly[1] {
				t.Errorf("%s: %s is outside of state and run", name, match[1])
			}
		}
	}
	for _, p := range (&node{layout: l}).components().all() {
		for _, file := range p.files {
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s reads a file that nothing writes: %v", p.name, err)
			}
		}
	}
}

func TestNetworkConfigGivesPodsTheBridge(t *testing.T) {
	data, err := render("cni.json", newSettings(layout{run: "/run/x"}, "", ""))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Name    string
		Plugins []struct {
			Bridge      string
			IsGateway   bool
			HairpinMode bool
			IPAM        struct {
				DataDir string
				Ranges  [][]struct{ Subnet, Gateway string }
			}
		}
	}
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if got.Name != bridge || len(got.Plugins) != 1 {
		t.Fatalf("got %+v", got)
	}
	plugin := got.Plugins[0]
	if !plugin.IsGateway || !plugin.HairpinMode || plugin.Bridge != bridge || plugin.IPAM.DataDir != "/run/x/addresses" {
		t.Errorf("got %+v", plugin)
	}
	want := [][]struct{ Subnet, Gateway string }{{{podNetwork, nodeAddress}}}
	if diff := cmp.Diff(want, plugin.IPAM.Ranges); diff != "" {
		t.Errorf("ranges (-want +got):\n%s", diff)
	}
}

func TestKubeconfigStandsAlone(t *testing.T) {
	l := testLayout(t)
	if err := ensureCertificates(l, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := writeKubeconfig(l, "admin", l.kubeconfig()); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(l.kubeconfig()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, error %v: it holds a key", info.Mode(), err)
	}
	data := string(read(t, l.kubeconfig()))
	for field, file := range map[string]string{
		"certificate-authority-data": l.certificate("ca.crt"),
		"client-certificate-data":    l.certificate("admin.pem"),
		"client-key-data":            l.certificate("admin.pem"),
	} {
		if line := field + ": " + base64.StdEncoding.EncodeToString(read(t, file)) + "\n"; !strings.Contains(data, line) {
			t.Errorf("%s is not the content of %s", field, filepath.Base(file))
		}
	}
	if strings.Contains(data, l.state) {
		t.Error("it points to another file")
	}
}

func TestRenderRefusesWhatIsNotGiven(t *testing.T) {
	if out, err := render("coredns.yaml", map[string]string{"Image": "x"}); err == nil {
		t.Errorf("no error, got %s", out)
	}
}

func TestParseMounts(t *testing.T) {
	const mountinfo = `22 1 0:21 / / rw - ext4 /dev/a rw
30 22 0:30 / /s/data/kubelet/pods/a rw - tmpfs tmpfs rw
31 30 0:31 / /s/data/kubelet/pods/a/with\040space rw - tmpfs tmpfs rw
32 22 0:32 / /s-other/x rw - tmpfs tmpfs rw
33 22 0:33 / /run/r rw - tmpfs tmpfs rw
short line
`
	want := []string{"/run/r", "/s/data/kubelet/pods/a/with space", "/s/data/kubelet/pods/a"}
	if diff := cmp.Diff(want, parseMounts(mountinfo, "/s", "/run/r")); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
}

func TestOtherOwner(t *testing.T) {
	for _, row := range []struct{ reason, addresses, want string }{
		{"nothing printed", "", ""},
		{"nobody", "[]", ""},
		{"only interfaces without a matching address", "[{},{}]", ""},
		{"our bridge", `[{},{"ifname":"` + bridge + `"}]`, ""},
		{"podman's bridge", `[{"ifname":"` + bridge + `"},{"ifname":"podman0"}]`, "podman0"},
	} {
		if got, err := otherOwner([]byte(row.addresses)); err != nil || got != row.want {
			t.Errorf("%s: got %q, %v, want %q", row.reason, got, err, row.want)
		}
	}
}

func TestRemoveDirectoryRefusesBroadPaths(t *testing.T) {
	n := &node{}
	for _, dir := range []string{"", "/", "/home", "relative/dir"} {
		if err := n.removeDirectory(dir); err == nil {
			t.Errorf("%q: no error", dir)
		}
	}
}

func TestClaim(t *testing.T) {
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		reason        string
		found         string // the owner file; empty for none
		refused, kept bool   // kept: what is in the run directory stays
	}{
		{reason: "nobody's"},
		{reason: "ours", found: `{"boot":"` + boot + `","state":"STATE"}`, kept: true},
		{reason: "ours of an earlier boot", found: `{"boot":"earlier","state":"STATE"}`},
		{reason: "another node's", found: `{"boot":"` + boot + `","state":"/elsewhere"}`, refused: true, kept: true},
		{reason: "another node's of an earlier boot", found: `{"boot":"earlier","state":"/elsewhere"}`},
		{reason: "not readable", found: "{"},
	} {
		n := &node{layout: testLayout(t)}
		left := n.layout.record("kubelet")
		write(t, left, []byte("{}"))
		if row.found != "" {
			write(t, n.layout.ownerFile(), []byte(strings.ReplaceAll(row.found, "STATE", n.layout.state)))
		}
		if err := n.claim(); (err != nil) != row.refused {
			t.Errorf("%s: got %v, want refused: %v", row.reason, err, row.refused)
		}
		if _, err := os.Stat(left); (err == nil) != row.kept {
			t.Errorf("%s: kept %v, want %v", row.reason, err == nil, row.kept)
		}
		if !row.refused {
			var got owner
			if err := json.Unmarshal(read(t, n.layout.ownerFile()), &got); err != nil || got != (owner{Boot: boot, State: n.layout.state}) {
				t.Errorf("%s: owner %+v, %v", row.reason, got, err)
			}
		}
	}
}
