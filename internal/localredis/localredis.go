// SPDX-License-Identifier: Apache-2.0

// Package localredis runs private Redis servers, sentinels and clusters for tests, benchmarks and trying things out.
//
// The server's program is found on the machine or installed: see Install. A server gets its own folder and free ports on the loopback interface,
// appends to a file durably unless told otherwise, and ends with Stop or with the program that started it.
package localredis

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/idempotency-dev/operator/internal/child"
)

// Options of a server. The zero value is a durable server in a temporary folder on a free port of 127.0.0.1.
type Options struct {
	// Dir holds data, configuration and log, and is kept by Stop; a folder of an earlier server is used again.
	// Empty: a temporary folder that Stop removes.
	Dir string
	// Port to listen on. 0: a free one.
	Port int
	// Listen is the address to listen on. Empty: 127.0.0.1.
	Listen string
	// Settings for redis.conf, beside and instead of those for address, port and folder.
	Settings map[string]string
	// TLS makes the port speak TLS only.
	TLS *TLS
	// Sentinel makes it a sentinel; the lines say what it watches.
	Sentinel []string
	// Now, when it is not zero, is where the server's clock stands still, until SetClock moves it.
	Now time.Time
}

// TLS names files in PEM.
type TLS struct{ Certificate, Key, Authorities string }

// Server is a running server.
type Server struct {
	options Options
	own     bool // the folder is temporary
	process *os.Process
	exited  <-chan struct{}
}

// Start makes or reuses the folder and starts a server in it; it returns when the server takes connections.
func Start(ctx context.Context, o Options) (*Server, error) {
	s := &Server{options: o}
	if s.options.Listen == "" {
		s.options.Listen = "127.0.0.1"
	}
	if s.options.Dir == "" {
		dir, err := os.MkdirTemp("", "idempotency-redis-")
		if err != nil {
			return nil, fmt.Errorf("make folder: %w", err)
		}
		s.options.Dir, s.own = dir, true
	}
	if err := os.MkdirAll(s.options.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	var err error
	for range 5 { // somebody may be faster to take a port that was free
		if err = s.launch(ctx); err == nil || o.Port != 0 || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		s.remove()
		return nil, err
	}
	return s, nil
}

// Addr is the server's host:port.
func (s *Server) Addr() string {
	return net.JoinHostPort(s.options.Listen, strconv.Itoa(s.options.Port))
}

// Dir is the server's folder: its log is in server.log.
func (s *Server) Dir() string { return s.options.Dir }

// Stop ends the server without saving anything but what it has written already, waits for its end, and removes a temporary folder.
func (s *Server) Stop() {
	s.Kill()
	s.remove()
}

// Kill ends the server as a crash would, and keeps the folder.
func (s *Server) Kill() {
	_ = s.process.Signal(syscall.SIGKILL) // fails only when it has ended already
	<-s.exited
}

// Pause stops the process until Resume: it stays connected, and does nothing.
func (s *Server) Pause() error { return s.process.Signal(syscall.SIGSTOP) }

// Resume lets a paused server go on.
func (s *Server) Resume() error { return s.process.Signal(syscall.SIGCONT) }

// Restart starts a server that has ended again, with the same folder, port and settings but for those in changes.
func (s *Server) Restart(ctx context.Context, changes map[string]string) error {
	settings := maps.Clone(s.options.Settings)
	if settings == nil {
		settings = map[string]string{}
	}
	maps.Copy(settings, changes)
	s.options.Settings = settings
	return s.run(ctx)
}

// SetClock stops the server's clock at now, or moves it there. It takes effect with the next time that the server asks for.
func (s *Server) SetClock(now time.Time) error {
	s.options.Now = now
	draft, err := os.CreateTemp(s.options.Dir, "clock-")
	if err != nil {
		return fmt.Errorf("write clock: %w", err)
	}
	// Half a microsecond more: the library reads a decimal fraction, and cuts off what it cannot express.
	_, err = fmt.Fprintf(draft, "%s5\n", now.UTC().Format("2006-01-02 15:04:05.000000"))
	if closed := draft.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(draft.Name(), s.clockFile())
	}
	if err != nil {
		return fmt.Errorf("write clock: %w", err)
	}
	return nil
}

func (s *Server) clockFile() string { return filepath.Join(s.options.Dir, "clock") }

func (s *Server) remove() {
	if s.own {
		_ = os.RemoveAll(s.options.Dir)
	}
}

func (s *Server) launch(ctx context.Context) error {
	if s.options.Port == 0 {
		port, err := freePort(s.options.Listen)
		if err != nil {
			return err
		}
		s.options.Port = port
		defer func() {
			if s.process == nil {
				s.options.Port = 0
			}
		}()
	}
	return s.run(ctx)
}

// configure writes redis.conf, each setting as its words. A sentinel rewrites its own file.
func (s *Server) configure() (string, error) {
	all := map[string]string{"bind": s.options.Listen, "port": strconv.Itoa(s.options.Port), "dir": s.options.Dir, "protected-mode": "no"}
	if s.options.Sentinel == nil {
		maps.Copy(all, map[string]string{"appendonly": "yes", "appendfsync": "everysec", "save": `""`})
	}
	if tls := s.options.TLS; tls != nil {
		maps.Copy(all, map[string]string{
			"port": "0", "tls-port": strconv.Itoa(s.options.Port), "tls-auth-clients": "no",
			"tls-cert-file": tls.Certificate, "tls-key-file": tls.Key, "tls-ca-cert-file": tls.Authorities,
		})
	}
	maps.Copy(all, s.options.Settings)
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%s %s\n", name, all[name])
	}
	for _, line := range s.options.Sentinel {
		fmt.Fprintln(&b, line)
	}
	path := filepath.Join(s.options.Dir, "redis.conf")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		return "", fmt.Errorf("write settings: %w", err)
	}
	return path, nil
}

// run starts the server once and waits until it takes connections.
func (s *Server) run(ctx context.Context) error {
	bin, err := Install(ctx)
	if err != nil {
		return err
	}
	conf, err := s.configure()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(s.options.Dir, "server.log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer func() { _ = log.Close() }()
	before, _ := log.Seek(0, 2)
	cmd := exec.Command(bin, conf) //nolint:noctx // it lives longer than the call
	cmd.Args[0] = "redis-server"   // see find
	if s.options.Sentinel != nil {
		cmd.Args = append(cmd.Args, "--sentinel")
	}
	cmd.Dir, cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = s.options.Dir, child.Attributes(syscall.SIGKILL), log, log
	if !s.options.Now.IsZero() {
		libraries, err := fakeClock(ctx)
		if err != nil {
			return err
		}
		if err := s.SetClock(s.options.Now); err != nil {
			return err
		}
		cmd.Env = append(os.Environ(), "LD_PRELOAD="+libraries, "FAKETIME_TIMESTAMP_FILE="+s.clockFile(), "FAKETIME_NO_CACHE=1",
			"FAKETIME_DONT_FAKE_MONOTONIC=1", "TZ=UTC0")
	}
	process, exited, err := child.Spawn(cmd)
	if err != nil {
		return fmt.Errorf("start redis: %w", err)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ready(log, before) {
		select {
		case <-tick.C:
		case <-exited:
			return fmt.Errorf("start redis: it ended: %s", tail(log, before))
		case <-ctx.Done():
			_ = process.Kill()
			<-exited
			return fmt.Errorf("start redis: %w: %s", ctx.Err(), tail(log, before))
		}
	}
	s.process, s.exited = process, exited
	return nil
}

// ready looks for what the server, or the sentinel, says last.
func ready(log *os.File, from int64) bool {
	text := tail(log, from)
	return strings.Contains(text, "Ready to accept connections") || strings.Contains(text, "Sentinel ID is")
}

func tail(log *os.File, from int64) string {
	b := make([]byte, 64<<10)
	n, _ := log.ReadAt(b, from)
	return string(bytes.TrimSpace(b[:n]))
}

func freePort(host string) (int, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0")) //nolint:noctx // binds and returns
	if err != nil {
		return 0, fmt.Errorf("find port: %w", err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}
