// SPDX-License-Identifier: Apache-2.0

package redirect

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// TestMain gives whoever is not root a user namespace in which he is.
func TestMain(m *testing.M) {
	if os.Geteuid() == 0 {
		os.Exit(m.Run())
	}
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, "become root of a user namespace:", err)
		os.Exit(1)
	}
}

// wire is a pod's network and a node's, joined by a cable. The test's thread is in one of them at a time.
type wire struct {
	t         *testing.T
	pod, node netns.NsHandle
}

func newWire(t *testing.T) *wire {
	t.Helper()
	runtime.LockOSThread() // and never unlocked: the thread ends with the test, since it is in another namespace
	w := &wire{t: t}
	var err error
	if w.node, err = netns.New(); err != nil {
		t.Fatal(err)
	}
	up(t, "lo")
	if w.pod, err = netns.New(); err != nil {
		t.Fatal(err)
	}
	up(t, "lo")
	cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "cable", PeerNamespace: netlink.NsFd(w.node)}
	if err := netlink.LinkAdd(cable); err != nil {
		t.Fatal(err)
	}
	up(t, "eth0", podV4+"/24", podV6+"/64")
	w.enter(w.node)
	up(t, "cable", nodeV4+"/24", nodeV6+"/64")
	w.enter(w.pod)
	return w
}

const podV4, podV6, nodeV4, nodeV6 = "10.9.0.2", "fd09::2", "10.9.0.1", "fd09::1"

func up(t *testing.T, name string, addresses ...string) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		parsed, err := netlink.ParseAddr(address)
		if err != nil {
			t.Fatal(err)
		}
		parsed.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(link, parsed); err != nil {
			t.Fatal(err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
}

func (w *wire) enter(namespace netns.NsHandle) {
	w.t.Helper()
	if err := netns.Set(namespace); err != nil {
		w.t.Fatal(err)
	}
}

// serve answers every connection to the port, by IPv4 and IPv6, with the name.
func (w *wire) serve(port int, name string) {
	w.t.Helper()
	listener, err := net.Listen("tcp", fmt.Sprintf("[::]:%d", port))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, name)
			_ = conn.Close()
		}
	}()
}

// ask returns who answers at the address; "nobody" when the connection is refused.
func (w *wire) ask(address string, port int) string {
	w.t.Helper()
	conn, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(address), uint16(port))))
	if errors.Is(err, syscall.ECONNREFUSED) {
		return "nobody"
	}
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	answer, err := io.ReadAll(conn)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(answer)
}

var ports = Ports{App: 8080, Sidecar: 15600, Probes: 15602}

// TestApply: only what comes from outside, to the app's port, is led to the sidecar, also when the rules were there before.
func TestApply(t *testing.T) {
	w := newWire(t)
	w.serve(8080, "app")
	w.serve(15600, "sidecar")
	w.serve(9090, "other")
	w.enter(w.node)
	w.serve(8080, "neighbour")
	for _, pass := range []string{"once", "again, as after a restart"} {
		w.enter(w.pod)
		if err := Apply(ports); err != nil {
			t.Fatal(err)
		}
		for _, row := range []struct {
			why     string
			from    netns.NsHandle
			address []string
			port    int
			want    string
		}{
			{"a request from outside", w.node, []string{podV4, podV6}, 8080, "sidecar"},
			{"a probe", w.node, []string{podV4, podV6}, 15602, "app"},
			{"the sidecar's own port", w.node, []string{podV4, podV6}, 15600, "sidecar"},
			{"another port", w.node, []string{podV4, podV6}, 9090, "other"},
			{"the sidecar asks the app", w.pod, []string{"127.0.0.1", "::1"}, 8080, "app"},
			{"a container asks the pod's own address", w.pod, []string{podV4, podV6}, 8080, "app"},
			{"egress to the same number", w.pod, []string{nodeV4, nodeV6}, 8080, "neighbour"},
		} {
			w.enter(row.from)
			for _, address := range row.address {
				if got := w.ask(address, row.port); got != row.want {
					t.Errorf("%s: %s to %s port %d: answered by %s, want %s", pass, row.why, address, row.port, got, row.want)
				}
			}
		}
	}
	w.enter(w.pod)
	if rules := w.rules(); rules != 2 {
		t.Errorf("%d rules, want 2", rules)
	}
}

// TestSidecarGone: while the sidecar does not listen, nobody answers: the app is not reached in its place.
func TestSidecarGone(t *testing.T) {
	w := newWire(t)
	w.serve(8080, "app")
	if err := Apply(ports); err != nil {
		t.Fatal(err)
	}
	w.enter(w.node)
	for _, address := range []string{podV4, podV6} {
		if got := w.ask(address, 8080); got != "nobody" {
			t.Errorf("%s: answered by %s", address, got)
		}
	}
}

// TestOtherPorts replace the former ones, and leave other people's rules alone.
func TestOtherPorts(t *testing.T) {
	w := newWire(t)
	conn, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "others"})
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	w.serve(8080, "app")
	w.serve(15600, "sidecar")
	w.serve(9090, "moved")
	for _, p := range []Ports{ports, {App: 9090, Sidecar: 15600, Probes: 15602}} {
		if err := Apply(p); err != nil {
			t.Fatal(err)
		}
	}
	w.enter(w.node)
	for port, want := range map[int]string{8080: "app", 9090: "sidecar", 15602: "moved"} {
		if got := w.ask(podV4, port); got != want {
			t.Errorf("port %d: answered by %s, want %s", port, got, want)
		}
	}
	w.enter(w.pod)
	tables, err := conn.ListTables()
	if err != nil || len(tables) != 2 {
		t.Errorf("tables %v, %v: want ours and the others'", tables, err)
	}
}

func (w *wire) rules() int {
	w.t.Helper()
	conn, err := nftables.New()
	if err != nil {
		w.t.Fatal(err)
	}
	ours := &nftables.Table{Family: nftables.TableFamilyINet, Name: table}
	rules, err := conn.GetRules(ours, &nftables.Chain{Name: "inbound", Table: ours})
	if err != nil {
		w.t.Fatal(err)
	}
	return len(rules)
}

// TestValidate at the bounds.
func TestValidate(t *testing.T) {
	for _, row := range []struct {
		ports Ports
		valid bool
	}{
		{Ports{1, 65535, 2}, true},
		{Ports{0, 15600, 15602}, false},
		{Ports{8080, 65536, 15602}, false},
		{Ports{8080, 15600, 0}, false},
		{Ports{8080, 8080, 15602}, false},
		{Ports{8080, 15600, 8080}, false},
		{Ports{8080, 15600, 15600}, false},
	} {
		if err := row.ports.Validate(); (err == nil) != row.valid {
			t.Errorf("%+v: %v", row.ports, err)
		}
		if err := Apply(row.ports); !row.valid && err == nil {
			t.Errorf("%+v was applied", row.ports)
		}
	}
}
