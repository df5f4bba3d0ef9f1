// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"log"
	"log/slog"
	"net/http"
	"net/http/httputil"
)

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
			addForwarded(out.Header, pr.In)
			hideKey(out.Header)
		},
		Transport:      p.upstream.transport,
		ModifyResponse: watchResponse,
		FlushInterval:  -1,
		BufferPool:     pool{p.chunks},
		ErrorLog:       quietLog(p.log),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			w.WriteHeader(http.StatusBadGateway)
		},
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
