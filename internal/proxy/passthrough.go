// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"log"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
	"time"
)

// flushInterval is how long a part of an answer of known length may wait for more of it: to send its header alone would cost every answer another
// write. One without a length, or of text/event-stream, is sent as it comes.
const flushInterval = 5 * time.Millisecond

// newForward is the way for everything that is not enforced: streaming, upgrades, trailers and early hints included.
func newForward(p *Proxy) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			out := pr.Out
			out.URL.Scheme, out.URL.Host, out.URL.User = p.upstream.url.Scheme, p.upstream.url.Host, nil
			out.URL.RawQuery = pr.In.URL.RawQuery // ReverseProxy drops what it cannot parse, and an app may
			out.Host = pr.In.Host
			for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
				if values, ok := pr.In.Header[name]; ok {
					out.Header[name] = values
				}
			}
			declineHTTP(out.Header)
			addForwarded(out.Header, pr.In)
			if slices.ContainsFunc(methods(pr.In), mayAct) {
				p.upstream.once(out)
			}
		},
		Transport:      p.upstream.transport,
		ModifyResponse: watchResponse,
		FlushInterval:  flushInterval,
		BufferPool:     pool{p.chunks},
		ErrorLog:       quietLog(p.log),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			w.WriteHeader(http.StatusBadGateway)
		},
	}
}

// declineHTTP takes from a request the offer to go on in a protocol in which requests travel: they would reach the app around the chain. Declining
// is always allowed: https://www.rfc-editor.org/rfc/rfc9110#section-7.8
func declineHTTP(header http.Header) {
	header.Del("Http2-Settings")
	offer := strings.ToLower(strings.Join(header["Upgrade"], ","))
	for _, protocol := range []string{"h2", "http", "tls"} { // h2c, HTTP/2.0, TLS/1.2; apps differ in how exactly they read the rest
		if strings.Contains(offer, protocol) {
			header.Del("Upgrade")
			header.Del("Connection")
		}
	}
}

// pool is chunks as httputil wants them.
type pool struct{ chunks *chunks }

func (b pool) Get() []byte  { return b.chunks.get()[:] }
func (b pool) Put(c []byte) { b.chunks.put((*[chunkBytes]byte)(c)) }

func quietLog(to *slog.Logger) *log.Logger { return log.New(quiet{to}, "", 0) }

// quiet takes what net/http logs, which may hold what clients sent, as a count of words and no more.
type quiet struct{ log *slog.Logger }

func (q quiet) Write(text []byte) (int, error) {
	q.log.Debug("net/http reported an error")
	return len(text), nil
}
