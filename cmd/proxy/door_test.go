// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// door is a way to the database that can be shut: connections through it break, and new ones are refused.
type door struct {
	dsn    string
	target string

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]bool
}

func newDoor(t *testing.T, dsn string) *door {
	t.Helper()
	u, err := url.Parse(dsn)
	must(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	d := &door{target: u.Host, conns: map[net.Conn]bool{}}
	u.Host = listener.Addr().String()
	d.dsn = u.String()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go d.pass(conn)
		}
	}()
	return d
}

func (d *door) pass(in net.Conn) {
	defer in.Close()
	out, err := net.Dial("tcp", d.target)
	if err != nil || !d.enter(in, out) {
		return
	}
	defer out.Close()
	go func() {
		_, _ = io.Copy(out, in)
		out.Close()
	}()
	_, _ = io.Copy(in, out)
}

func (d *door) enter(conns ...net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, conn := range conns {
		if d.closed {
			conn.Close()
		}
		d.conns[conn] = true
	}
	return !d.closed
}

func (d *door) shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for conn := range d.conns {
		conn.Close()
	}
	clear(d.conns)
}

func (d *door) open() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = false
}
