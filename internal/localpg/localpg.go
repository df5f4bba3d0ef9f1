// SPDX-License-Identifier: Apache-2.0

// Package localpg runs a private PostgreSQL server for tests, benchmarks and trying things out.
//
// The server's programs are found on the machine or installed: see Install. The server gets its own folder, a free port on the loopback
// interface and a random password, writes durably unless told otherwise, and ends with Stop or with the program that started it.
package localpg

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
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

// superuser of every server that this package makes.
const superuser = "postgres"

// Options of a server. The zero value is a server of any version in a temporary folder on a free port of 127.0.0.1.
type Options struct {
	// Dir holds the data, the log and the password, and is kept by Stop; a folder of an earlier server is used again.
	// Empty: a temporary folder that Stop removes.
	Dir string
	// Version is a major version, such as "18". Empty: the newest that is installed.
	Version string
	// Port to listen on. 0: a free one.
	Port int
	// Listen is the address to listen on. Empty: 127.0.0.1.
	Listen string
	// Settings for postgresql.conf, beside those for address, port and sockets.
	Settings map[string]string
}

// Server is a running server.
type Server struct {
	dir      string
	own      bool // dir is temporary
	listen   string
	port     int
	password string
	process  *os.Process
	exited   <-chan struct{}
}

// Start makes or reuses the folder and starts a server in it; it returns when the server takes connections.
func Start(ctx context.Context, o Options) (*Server, error) {
	bin, err := Install(ctx, o.Version)
	if err != nil {
		return nil, err
	}
	account, err := unprivileged()
	if err != nil {
		return nil, err
	}
	s := &Server{dir: o.Dir, listen: o.Listen, port: o.Port}
	if s.listen == "" {
		s.listen = "127.0.0.1"
	}
	if err := s.prepare(ctx, bin, account); err != nil {
		s.remove()
		return nil, err
	}
	if err := s.launch(ctx, bin, account, o); err != nil {
		s.remove()
		return nil, err
	}
	return s, nil
}

// DSN is the superuser's connection URL for database.
func (s *Server) DSN(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, s.password),
		Host:     s.Addr(),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Addr is the server's host:port.
func (s *Server) Addr() string { return net.JoinHostPort(s.listen, strconv.Itoa(s.port)) }

// Dir is the server's folder: its data is in the folder data, its log in server.log.
func (s *Server) Dir() string { return s.dir }

// Stop ends the server, breaking its connections, waits for its end, and removes a temporary folder.
func (s *Server) Stop() {
	s.signal(syscall.SIGINT) // "fast" shutdown
	s.remove()
}

// Kill ends the server as a power failure would end its process, and keeps the folder.
func (s *Server) Kill() { s.signal(syscall.SIGKILL) }

func (s *Server) signal(sig os.Signal) {
	_ = s.process.Signal(sig) // fails only when it has ended already
	<-s.exited
}

func (s *Server) remove() {
	if s.own {
		_ = os.RemoveAll(s.dir)
	}
}

// prepare makes the folder and the cluster in it, unless a former server left one.
func (s *Server) prepare(ctx context.Context, bin string, account *account) error {
	if s.dir == "" {
		dir, err := os.MkdirTemp("", "idempotency-postgres-")
		if err != nil {
			return fmt.Errorf("make folder: %w", err)
		}
		s.dir, s.own = dir, true
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	if err := account.own(s.dir); err != nil {
		return err
	}
	secret := filepath.Join(s.dir, "password")
	if password, err := os.ReadFile(secret); err == nil {
		s.password = string(password)
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read password: %w", err)
	}
	return s.initialise(ctx, bin, account, secret)
}

// initialise makes a new cluster. The password gets its final name last: it stands for a complete cluster.
func (s *Server) initialise(ctx context.Context, bin string, account *account, secret string) error {
	s.password = rand.Text()
	draft := secret + ".new"
	if err := os.WriteFile(draft, []byte(s.password), 0o600); err != nil {
		return fmt.Errorf("write password: %w", err)
	}
	if err := account.own(draft); err != nil {
		return err
	}
	data := filepath.Join(s.dir, "data")
	if err := os.RemoveAll(data); err != nil {
		return fmt.Errorf("clear folder: %w", err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "--pgdata", data, "--username", superuser, "--pwfile", draft,
		"--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync")
	cmd.Dir, cmd.SysProcAttr = s.dir, account.attributes()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run initdb: %w: %s", err, bytes.TrimSpace(out))
	}
	// The server listens on one address only; whoever reaches that may try the password.
	if err := appendFile(filepath.Join(data, "pg_hba.conf"), "host all all all scram-sha-256\nhost replication all all scram-sha-256\n"); err != nil {
		return err
	}
	if err := appendFile(filepath.Join(data, "postgresql.conf"), "include_if_exists = 'localpg.conf'\n"); err != nil {
		return err
	}
	if err := os.Rename(draft, secret); err != nil {
		return fmt.Errorf("keep password: %w", err)
	}
	return nil
}

// launch starts the server, on another port when a free one was asked for and somebody was faster to take it.
func (s *Server) launch(ctx context.Context, bin string, account *account, o Options) error {
	var err error
	for range 5 {
		if o.Port == 0 {
			if s.port, err = freePort(s.listen); err != nil {
				return err
			}
		}
		if err = s.configure(account, o.Settings); err != nil {
			return err
		}
		if err = s.run(ctx, bin, account); err == nil || o.Port != 0 || ctx.Err() != nil {
			return err
		}
	}
	return err
}

func (s *Server) configure(account *account, settings map[string]string) error {
	all := map[string]string{
		"listen_addresses":        s.listen,
		"port":                    strconv.Itoa(s.port),
		"unix_socket_directories": "",
	}
	maps.Copy(all, settings)
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%s = '%s'\n", name, strings.ReplaceAll(all[name], "'", "''"))
	}
	path := filepath.Join(s.dir, "data", "localpg.conf")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return account.own(path)
}

// run starts the server once and waits until it takes connections.
func (s *Server) run(ctx context.Context, bin string, account *account) error {
	data := filepath.Join(s.dir, "data")
	log, err := os.OpenFile(filepath.Join(s.dir, "server.log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer func() { _ = log.Close() }()
	if err := account.own(log.Name()); err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(bin, "postgres"), "-D", data) //nolint:noctx // it lives longer than the call
	cmd.Dir, cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = s.dir, account.attributes(), log, log
	before, _ := log.Seek(0, 2)
	if s.process, s.exited, err = child.Spawn(cmd); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ready(data, s.process.Pid) {
		select {
		case <-tick.C:
		case <-s.exited:
			return fmt.Errorf("start postgres: it ended: %s", tail(log, before))
		case <-ctx.Done():
			s.signal(syscall.SIGQUIT)
			return fmt.Errorf("start postgres: %w: %s", ctx.Err(), tail(log, before))
		}
	}
	return nil
}

// ready reads the status line of postmaster.pid: https://www.postgresql.org/docs/current/storage-file-layout.html
func ready(data string, pid int) bool {
	content, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return false
	}
	lines := strings.Split(string(content), "\n")
	if len(lines) < 8 || lines[0] != strconv.Itoa(pid) {
		return false
	}
	status := strings.TrimSpace(lines[7])
	return status == "ready" || status == "standby"
}

func tail(log *os.File, from int64) string {
	b := make([]byte, 4096)
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

func appendFile(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("open settings: %w", err)
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return nil
}
