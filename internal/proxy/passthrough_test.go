// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
	"time"
)

// TestUpgradePasses: a websocket, or whatever two ends agree on, flows both ways.
func TestUpgradePasses(t *testing.T) {
	r := start(t, func(s *setup) {
		s.app = func(w http.ResponseWriter, req *http.Request) {
			conn, stream, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", req.Header.Get("Upgrade"))
			line, _ := stream.ReadString('\n')
			_, _ = io.WriteString(conn, strings.ToUpper(line))
		}
	})
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	_, err = io.WriteString(conn, "GET /payments HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\nIdempotency-Key: k\r\n\r\n")
	must(t, err)
	reader := bufio.NewReader(conn)
	resp, err := http.ReadResponse(reader, nil)
	must(t, err)
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != "echo" {
		t.Fatalf("got %d %v", resp.StatusCode, resp.Header)
	}
	_, err = io.WriteString(conn, "hello\n")
	must(t, err)
	if line, err := reader.ReadString('\n'); line != "HELLO\n" {
		t.Errorf("got %q %v", line, err)
	}
}

// TestUpgradeToHTTPIsDeclined: no connection to the app carries requests that the chain does not see.
func TestUpgradeToHTTPIsDeclined(t *testing.T) {
	for _, row := range []struct {
		target, offer string
		change        func(*setup)
		reason        string
	}{
		{"GET /anything", "h2c", nil, "what follows would be HTTP/2 frames"},
		{"GET /anything", "H2C", nil, "protocols are compared without case"},
		{"GET /anything", "websocket, h2c", nil, "the app may take the second offer"},
		{"GET /anything", "HTTP/2.0", nil, "the same by another name"},
		{"GET /anything", "TLS/1.2, HTTP/1.1", nil, "requests in a tunnel: RFC 2817"},
		{"POST /payments", "h2c", func(s *setup) { s.config.Routes[0].KeyRequired = false }, "a route without a key passes, too"},
		{"POST /payments", "h2c", auditing, "and so does everything in mode Audit"},
	} {
		t.Run(row.target+" "+row.offer, func(t *testing.T) {
			seen := make(chan http.Header, 1)
			r := startRaw(t, func(_ int64, conn net.Conn, req *http.Request) bool {
				seen <- req.Header
				if offer := req.Header.Get("Upgrade"); offer != "" {
					_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+offer+"\r\n\r\n")
					return false
				}
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				return true
			}, func(s *setup) {
				if row.change != nil {
					row.change(s)
				}
			})
			got := r.raw(row.target + " HTTP/1.1\nHost: x\nContent-Length: 0\nConnection: close, Upgrade, HTTP2-Settings\nUpgrade: " + row.offer + "\nHTTP2-Settings: AAMAAABk\n\n")
			if got.Status != 200 {
				t.Errorf("got %d, want 200: %s", got.Status, row.reason)
			}
			header := <-seen
			for _, name := range []string{"Upgrade", "Http2-Settings"} {
				if values, ok := header[name]; ok {
					t.Errorf("the app got %s %q: %s", name, values, row.reason)
				}
			}
			if strings.Contains(strings.ToLower(header.Get("Connection")), "upgrade") {
				t.Errorf("the app got Connection %q", header["Connection"])
			}
		})
	}
}

// TestAnswerOfKnownLengthFlows: the client has a part of it while the app still works on the rest.
func TestAnswerOfKnownLengthFlows(t *testing.T) {
	seen := make(chan struct{})
	r := start(t, func(s *setup) {
		s.app = func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Length", "8")
			_, _ = io.WriteString(w, "one ")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-seen:
			case <-req.Context().Done():
				return
			}
			_, _ = io.WriteString(w, "two.")
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+"/anything", nil)
	must(t, err)
	resp, err := r.client.RoundTrip(req)
	must(t, err)
	defer resp.Body.Close()
	part := make([]byte, 4)
	if _, err := io.ReadFull(resp.Body, part); err != nil || string(part) != "one " {
		t.Fatalf("got %q %v", part, err)
	}
	close(seen)
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "two." {
		t.Errorf("got %q %v", rest, err)
	}
}

// TestBothWaysOverHTTP2 is what gRPC needs: request and answer flow at once, and trailers come behind.
func TestBothWaysOverHTTP2(t *testing.T) {
	app := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.ProtoMajor != 2 {
			t.Errorf("the app got HTTP/%d", req.ProtoMajor)
		}
		w.Header().Set("Content-Type", "application/grpc")
		lines := bufio.NewReader(req.Body)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				break
			}
			_, _ = io.WriteString(w, strings.ToUpper(line))
			_ = http.NewResponseController(w).Flush()
		}
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	}))
	app.Config.Protocols = new(http.Protocols)
	app.Config.Protocols.SetUnencryptedHTTP2(true)
	app.Start()
	t.Cleanup(app.Close)
	r := start(t, func(s *setup) { s.url = strings.Replace(app.URL, "http", "h2c", 1) })
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)

	body, input := io.Pipe()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, r.url+"/shop.Payments/Watch", body)
	must(t, err)
	req.Header.Set("Te", "trailers")
	go func() { _, _ = io.WriteString(input, "one\n") }()
	resp, err := transport.RoundTrip(req)
	must(t, err)
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	for _, text := range []string{"one\n", "two\n"} {
		if text == "two\n" {
			_, err = io.WriteString(input, text)
			must(t, err)
		}
		if line, err := lines.ReadString('\n'); line != strings.ToUpper(text) {
			t.Fatalf("got %q %v", line, err)
		}
	}
	must(t, input.Close())
	_, err = io.Copy(io.Discard, lines)
	must(t, err)
	if resp.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("trailers %v", resp.Trailer)
	}
	for _, replayed := range []bool{false, true} { // a unary call can be enforced
		got := r.post("k", "one\n")
		if got.Body != "ONE\n" || got.Trailer.Get("Grpc-Status") != "0" || got.replayed() != replayed {
			t.Errorf("got %d %q, trailers %v, replayed %v", got.Status, got.Body, got.Trailer, got.replayed())
		}
	}
}

func TestRefusedHTTP2ConnectionGivesTheKeyBack(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := listener.Addr().String()
	listener.Close()
	r := start(t, func(s *setup) { s.url = "h2c://" + address })
	want(t, r.post("k", `{}`), 502, "upstream-unreachable", false)
	if r.store.get("alice", "k") != nil {
		t.Error("the reservation is still there")
	}
}

func TestEarlyHintsAndTrailersPass(t *testing.T) {
	r := start(t, func(s *setup) {
		s.app = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</style.css>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Set("Trailer", "Checksum")
			w.WriteHeader(http.StatusOK)
			_, _ = io.WriteString(w, "body")
			w.Header().Set("Checksum", "1")
		}
	})
	hints := 0
	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error { hints++; return nil }})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+"/", nil)
	must(t, err)
	got, err := do(r.client, req)
	must(t, err)
	if hints != 1 || got.Trailer.Get("Checksum") != "1" || got.Body != "body" {
		t.Errorf("%d hints, trailers %v, body %q", hints, got.Trailer, got.Body)
	}
}
