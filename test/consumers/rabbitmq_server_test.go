// SPDX-License-Identifier: Apache-2.0

package consumers

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/idempotency-dev/operator/internal/child"
	"github.com/idempotency-dev/operator/internal/debian"
)

// rabbitServer is the program itself: the one on the PATH changes to an account of its own.
const rabbitServer = "/usr/lib/rabbitmq/bin/rabbitmq-server"

// installRabbitMQ installs Debian's package when run by root, and keeps it from starting a server of the machine's own.
func installRabbitMQ(ctx context.Context) error {
	if _, err := os.Stat(rabbitServer); err == nil {
		return nil
	}
	const policy = "/usr/sbin/policy-rc.d"
	if _, err := os.Stat(policy); os.IsNotExist(err) {
		if err := os.WriteFile(policy, []byte("#!/bin/sh\nexit 101\n"), 0o755); err != nil {
			return fmt.Errorf("keep services from starting: %w", err)
		}
		defer func() { _ = os.Remove(policy) }()
	}
	return debian.Install(ctx, "rabbitmq-server")
}

// startRabbitMQ starts a server on the loopback interface, with everything that it writes in a folder of the test, and returns its URL.
func startRabbitMQ(t *testing.T) string {
	t.Helper()
	if err := installRabbitMQ(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	mapper, listener, distribution := freePort(t), freePort(t), freePort(t)
	addr := net.JoinHostPort("127.0.0.1", listener)
	config := filepath.Join(dir, "rabbitmq.conf")
	settings := "listeners.tcp.1 = " + addr + "\ndisk_free_limit.absolute = 50MB\nvm_memory_high_watermark.absolute = 512MiB\n"
	for path, text := range map[string]string{config: settings, filepath.Join(dir, "plugins"): "[].\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := append(os.Environ(),
		"HOME="+dir, "RABBITMQ_NODENAME=test-"+listener+"@localhost", "RABBITMQ_BASE="+dir, "RABBITMQ_MNESIA_BASE="+filepath.Join(dir, "data"),
		"RABBITMQ_LOG_BASE="+filepath.Join(dir, "log"), "RABBITMQ_CONFIG_FILE="+config, "RABBITMQ_ENABLED_PLUGINS_FILE="+filepath.Join(dir, "plugins"),
		"RABBITMQ_PID_FILE="+filepath.Join(dir, "pid"), "RABBITMQ_DIST_PORT="+distribution, "RABBITMQ_CONF_ENV_FILE="+filepath.Join(dir, "none"),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
		"ERL_EPMD_PORT="+mapper, "ERL_EPMD_ADDRESS=127.0.0.1",
	)
	// The server would leave a port mapper behind that it has started itself.
	spawn(t, env, "epmd", "-port", mapper, "-address", "127.0.0.1")
	dialled(t, net.JoinHostPort("127.0.0.1", mapper))
	log := spawn(t, env, rabbitServer)
	url := "amqp://guest:guest@" + addr + "/"
	deadline := time.Now().Add(2 * time.Minute)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := amqp.Dial(url)
		if err == nil {
			_ = conn.Close()
			return url
		}
		if time.Now().After(deadline) {
			t.Fatalf("RabbitMQ does not start: %v: %s", err, log())
		}
		<-tick.C
	}
}

// spawn runs a program, with all processes that it starts, until the test ends. log is what it writes.
func spawn(t *testing.T, env []string, program string, args ...string) (log func() []byte) {
	t.Helper()
	out, err := os.CreateTemp(t.TempDir(), "log-")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = env, out, out, child.Attributes(syscall.SIGTERM) // the server's script stops it then
	process, ended, err := child.Spawn(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-process.Pid, syscall.SIGKILL) // the group: the server is a child of a script
		<-ended
		_ = out.Close()
	})
	return func() []byte {
		text, _ := os.ReadFile(out.Name()) // what cannot be read tells nothing
		return text
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// dialled waits until somebody listens at addr.
func dialled(t *testing.T, addr string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("nobody listens at %s: %v", addr, err)
		}
	}
}
