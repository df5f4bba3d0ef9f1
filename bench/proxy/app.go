// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"strconv"
)

// app answers every payment at once. It is as cheap as can be, so that what is measured is what is in front of it.
func app(ctx context.Context, listener net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	response := fmt.Appendf(nil, "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: %d\r\nLocation: /payments/1\r\n\r\n%s", len(answer), answer)
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		go serve(conn, response)
	}
}

func serve(conn net.Conn, response []byte) {
	defer func() { _ = conn.Close() }()
	reader := bufio.NewReader(conn)
	text := textproto.NewReader(reader)
	for {
		if _, err := text.ReadLine(); err != nil {
			return
		}
		header, err := text.ReadMIMEHeader()
		if err != nil {
			return
		}
		length, err := strconv.ParseInt(header.Get("Content-Length"), 10, 64)
		if err != nil {
			return // none of the systems sends chunks
		}
		if _, err := io.CopyN(io.Discard, reader, length); err != nil {
			return
		}
		if _, err := conn.Write(response); err != nil {
			return
		}
	}
}
