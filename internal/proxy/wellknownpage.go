// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"fmt"
	"html"
	"strings"
)

// page is a publication for people. It is written without html/template, which looks methods up by name: with it the linker keeps every method of every
// type in the program, the whole of the key stores' drivers among them, and the binary is half as large again.
func (p publication) page() []byte {
	var out bytes.Buffer
	write := func(format string, texts ...string) {
		args := make([]any, len(texts))
		for i, text := range texts {
			args[i] = html.EscapeString(text)
		}
		fmt.Fprintf(&out, format, args...)
	}
	write("<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>Idempotency of this service</title></head>\n<body>\n<h1>Idempotency of this service</h1>\n")
	write("<p>Requests on the routes below have one effect per client and key: a retry with the same key gets the recorded answer. After %s. Mode: %s. Client: %s.</p>\n",
		p.Specification, p.Mode, p.Client)
	for _, r := range p.Routes {
		write("<h2>%s</h2>\n<dl>\n<dt>Requests</dt><dd>%s <code>%s</code></dd>\n", r.Name, strings.Join(r.Methods, " "), r.Path)
		write("<dt>Key</dt><dd>")
		if r.KeyHeader != "" {
			write("<code>%s</code>, ", r.KeyHeader)
		}
		write("%s: %s; at most %s bytes", map[bool]string{true: "required", false: "optional"}[r.KeyRequired], r.Key, fmt.Sprint(r.KeyLength))
		if r.KeyPattern != "" {
			write("; matching <code>%s</code>", r.KeyPattern)
		}
		write("</dd>\n<dt>Same request</dt><dd>%s", r.Fingerprint)
		if len(r.Headers) > 0 {
			write("; and the headers <code>%s</code>", strings.Join(r.Headers, ", "))
		}
		if len(r.Ignored) > 0 {
			write("; leaving out <code>%s</code>", strings.Join(r.Ignored, ", "))
		}
		write("</dd>\n<dt>Kept for</dt><dd>%s</dd>\n<dt>While a request with the key is executed</dt><dd>%s</dd>\n", r.Window, r.InFlight)
		write("<dt>When the outcome is not known</dt><dd>%s</dd>\n<dt>A retry gets</dt><dd>%s</dd>\n<dt>Largest recorded answer</dt><dd>%s bytes</dd>\n</dl>\n", r.Unknown, r.Replay, fmt.Sprint(r.MaxBytes))
	}
	write("</body>\n</html>\n")
	return out.Bytes()
}
