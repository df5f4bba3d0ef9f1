// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

func TestCanonicalJSON(t *testing.T) {
	for _, row := range []struct{ in, want, reason string }{
		{`{"b":2,"a":1}`, `{"a":1,"b":2}`, "members by name"},
		{" { \"a\" :\t[ 1 , 2 ]\r\n} ", `{"a":[1,2]}`, "white space"},
		{`[2,1]`, `[2,1]`, "the order of an array counts"},
		{`{"n":9007199254740993}`, `{"n":9007199254740993}`, "a number that a float64 cannot hold"},
		{`[1.0,1,1e0,-0,0]`, `[1.0,1,1e0,-0,0]`, "the text of numbers is kept"},
		{`"\u0041\/\u00e9\u20ac"`, `"A/é€"`, "escapes that are not needed"},
		{`"\u0000\u001f\b\t\n\f\r\"\\"`, `"\u0000\u001f\b\t\n\f\r\"\\"`, "escapes that are"},
		{`"\ud83d\ude00"`, `"😀"`, "a surrogate pair"},
		{"{\"\U0001F600\":1,\"\uFB33\":2}", "{\"\U0001F600\":1,\"\uFB33\":2}", "by UTF-16 code units, not by bytes"},
		{`{}`, `{}`, "nothing"},
		{`[]`, `[]`, "nothing"},
		{`null`, `null`, "a document may be any value"},
		{`{"a":{"b":[{"d":1,"c":2}]}}`, `{"a":{"b":[{"c":2,"d":1}]}}`, "at any depth"},
		{`{"a":1,"a":1}`, "", "duplicate names"},
		{`{"a":1,"\u0061":1}`, "", "duplicate names, spelled differently"},
		{`"\ud800"`, "", "a lone surrogate"},
		{`"\udc00\ud800"`, "", "surrogates in the wrong order"},
		{`"\ud800x"`, "", "half a pair"},
		{`"\ud800\n"`, "", "half a pair before another escape"},
		{"\"\xff\"", "", "not UTF-8"},
		{`{"a":1}x`, "", "text behind the document"},
		{`{"a":01}`, "", "no JSON"},
		{``, "", "nothing at all"},
		{"\ufeff{}", "", "a byte order mark"},
		{strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth), strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth), "as deep as it may be"},
		{strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1), "", "one deeper"},
	} {
		got, ok := canonicalJSON([]byte(row.in), nil)
		if string(got) != row.want || ok != (row.want != "") {
			t.Errorf("%.60q: got %q %v: %s", row.in, got, ok, row.reason)
		}
	}
}

func TestIgnoredPointers(t *testing.T) {
	for _, row := range []struct{ pointer, in, want string }{
		{"/a", `{"a":1,"b":2}`, `{"b":2}`},
		{"/b", `{"a":1,"b":2}`, `{"a":1}`},
		{"/a/b", `{"a":{"b":1,"c":2}}`, `{"a":{"c":2}}`},
		{"/a/0", `{"a":[1,2,3]}`, `{"a":[2,3]}`},
		{"/a/2", `{"a":[1,2,3]}`, `{"a":[1,2]}`},
		{"/a~1b", `{"a/b":1,"c":2}`, `{"c":2}`},
		{"/a~0b", `{"a~b":1,"c":2}`, `{"c":2}`},
		{"/x", `{"a":1}`, `{"a":1}`},
		{"/a", `[1]`, `[1]`},
	} {
		if got, ok := canonicalJSON([]byte(row.in), map[string]bool{row.pointer: true}); string(got) != row.want || !ok {
			t.Errorf("%s in %s: got %s %v", row.pointer, row.in, got, ok)
		}
	}
}

type fingerprinted struct {
	method, target, body string
	header               []string
}

func (f fingerprinted) of(t *testing.T, rt *route) keystore.Fingerprint {
	t.Helper()
	req := httptest.NewRequest(f.method, f.target, strings.NewReader(f.body))
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(f.header); i += 2 {
		if strings.HasPrefix(f.header[i], "-") {
			req.Header.Del(f.header[i][1:])
			continue
		}
		req.Header[f.header[i]] = append(req.Header[f.header[i]], f.header[i+1])
	}
	s := &spool{dir: t.TempDir(), memoryBytes: 64, bodyBytes: 8 << 20, memory: &budget{limit: 1 << 30}, files: &budget{limit: 1 << 30}, chunks: &chunks{}}
	body, err := s.take(req)
	must(t, err)
	defer body.close()
	return rt.fingerprint(req, body)
}

func TestFingerprint(t *testing.T) {
	config := sampleRoute()
	config.FingerprintHeaders = []string{"X-Tenant"}
	config.FingerprintIgnore = []string{"/sentAt"}
	canonical := newRoute(config)
	config.CanonicalJSON = false
	raw := newRoute(config)
	big := `{"a":"` + strings.Repeat("x", 100) + `"}`
	huge := `{"a":"` + strings.Repeat("x", canonicalBytes) + `"}`
	for _, row := range []struct {
		rt     *route
		a, b   fingerprinted
		same   bool
		reason string
	}{
		{canonical, fingerprinted{"POST", "/p", `{"a":1}`, nil}, fingerprinted{"POST", "/p", `{"a":1}`, nil}, true, "equal"},
		{canonical, fingerprinted{"POST", "/p?dry=1", ``, nil}, fingerprinted{"POST", "/p", ``, nil}, false, "the query"},
		{canonical, fingerprinted{"POST", "/p?a=1&b=2", ``, nil}, fingerprinted{"POST", "/p?b=2&a=1", ``, nil}, true, "order of names"},
		{canonical, fingerprinted{"POST", "/p?a=1&a=2", ``, nil}, fingerprinted{"POST", "/p?a=2&a=1", ``, nil}, false, "order of equal names"},
		{canonical, fingerprinted{"POST", "/p?a=1", ``, nil}, fingerprinted{"POST", "/p?a=1&", ``, nil}, false, "an empty pair"},
		{canonical, fingerprinted{"POST", "/p", ``, nil}, fingerprinted{"PUT", "/p", ``, nil}, false, "the method"},
		{canonical, fingerprinted{"POST", "/p", ``, nil}, fingerprinted{"POST", "/p", ``, []string{"X-Http-Method-Override", "DELETE"}}, false, "the method that the app may take it for"},
		{canonical, fingerprinted{"POST", "/p", ``, nil}, fingerprinted{"POST", "/p", ``, []string{"X_http_method_override", "DELETE"}}, false, "by a look-alike"},
		{canonical, fingerprinted{"POST", "/p", ``, []string{"X-Http-Method", "delete", "X-Method-Override", "PUT"}},
			fingerprinted{"POST", "/p", ``, []string{"X-Method-Override", "PUT", "X-Http-Method", "DELETE"}}, true, "order of headers"},
		{canonical, fingerprinted{"POST", "/p/a", ``, nil}, fingerprinted{"POST", "/p/b", ``, nil}, false, "the path"},
		{canonical, fingerprinted{"POST", "/p/a%2Fb", ``, nil}, fingerprinted{"POST", "/p/a/b", ``, nil}, false, "the path's segments"},
		{canonical, fingerprinted{"POST", "/p", `{"n":9007199254740993}`, nil}, fingerprinted{"POST", "/p", `{"n":9007199254740992}`, nil}, false, "numbers that one float64 stands for"},
		{canonical, fingerprinted{"POST", "/p", `{"a":1,"b":2}`, nil}, fingerprinted{"POST", "/p", `{ "b":2,"a":1 }`, nil}, true, "JSON by content"},
		{raw, fingerprinted{"POST", "/p", `{"a":1,"b":2}`, nil}, fingerprinted{"POST", "/p", `{ "b":2,"a":1 }`, nil}, false, "JSON by bytes"},
		{canonical, fingerprinted{"POST", "/p", `[1,2]`, nil}, fingerprinted{"POST", "/p", `[2,1]`, nil}, false, "order of an array"},
		{canonical, fingerprinted{"POST", "/p", `{"a":1,"sentAt":1}`, nil}, fingerprinted{"POST", "/p", `{"a":1,"sentAt":2}`, nil}, true, "an ignored field"},
		{canonical, fingerprinted{"POST", "/p", `{}`, nil}, fingerprinted{"POST", "/p", `{}`, []string{"-Content-Type", "", "Content-Type", "text/plain"}}, false, "the media type"},
		{canonical, fingerprinted{"POST", "/p", `{ }`, nil}, fingerprinted{"POST", "/p", `{}`, []string{"-Content-Type", "", "Content-Type", "application/json;charset=utf-8"}}, false, "its parameters"},
		{canonical, fingerprinted{"POST", "/p", `{ }`, []string{"-Content-Type", "", "Content-Type", "Application/JSON ; charset=utf-8"}},
			fingerprinted{"POST", "/p", `{}`, []string{"-Content-Type", "", "Content-Type", "application/json;charset=utf-8"}}, true, "the spelling of a media type"},
		{canonical, fingerprinted{"POST", "/p", `{ }`, []string{"-Content-Type", "", "Content-Type", "application/vnd.x+json"}},
			fingerprinted{"POST", "/p", `{}`, []string{"-Content-Type", "", "Content-Type", "application/vnd.x+json"}}, true, "a +json type"},
		{canonical, fingerprinted{"POST", "/p", `{ }`, []string{"-Content-Type", "", "Content-Type", "text/json"}},
			fingerprinted{"POST", "/p", `{}`, []string{"-Content-Type", "", "Content-Type", "text/json"}}, false, "no JSON type"},
		{canonical, fingerprinted{"POST", "/p", `{ }`, []string{"Content-Encoding", "gzip"}}, fingerprinted{"POST", "/p", `{}`, []string{"Content-Encoding", "gzip"}}, false, "an encoded body is bytes"},
		{canonical, fingerprinted{"POST", "/p", `{}`, []string{"Content-Encoding", "br"}}, fingerprinted{"POST", "/p", `{}`, []string{"Content-Encoding", "gzip"}}, false, "the encoding"},
		{canonical, fingerprinted{"POST", "/p", `{}`, []string{"X-Tenant", "a"}}, fingerprinted{"POST", "/p", `{}`, []string{"X-Tenant", "b"}}, false, "a chosen header"},
		{canonical, fingerprinted{"POST", "/p", `{}`, []string{"X-Tenant", "a", "X-Tenant", "b"}}, fingerprinted{"POST", "/p", `{}`, []string{"X-Tenant", "ab"}}, false, "its lines"},
		{canonical, fingerprinted{"POST", "/p", `{}`, []string{"X-Other", "a"}}, fingerprinted{"POST", "/p", `{}`, []string{"X-Other", "b"}}, true, "any other header"},
		{canonical, fingerprinted{"POST", "/p", big + " ", nil}, fingerprinted{"POST", "/p", big, nil}, true, "a body in a file is compared by content, too"},
		{canonical, fingerprinted{"POST", "/p", huge + " ", nil}, fingerprinted{"POST", "/p", huge, nil}, false, "a huge body is bytes"},
		{canonical, fingerprinted{"POST", "/p", `{"a":1,"a":2}`, nil}, fingerprinted{"POST", "/p", `{"a":2,"a":2}`, nil}, false, "duplicate names are bytes"},
		{canonical, fingerprinted{"POST", "/p", "--a\r\n", []string{"-Content-Type", "", "Content-Type", "multipart/form-data; boundary=a"}},
			fingerprinted{"POST", "/p", "--b\r\n", []string{"-Content-Type", "", "Content-Type", "multipart/form-data; boundary=b"}}, false, "a form is bytes, its boundary included"},
	} {
		if same := row.a.of(t, row.rt) == row.b.of(t, row.rt); same != row.same {
			t.Errorf("%+v and %+v: same %v: %s", row.a.target, row.b.target, same, row.reason)
		}
	}
}

// TestFingerprintIsTheSameInEveryVersion: an entry outlives the sidecar that made it.
func TestFingerprintIsTheSameInEveryVersion(t *testing.T) {
	config := sampleRoute()
	config.FingerprintHeaders = []string{"X-Tenant"}
	request := fingerprinted{"POST", "/p/a%2Fb?b=2&a=1", `{"z":[1.0,{"b":"\u00e9","a":null}],"\ud83d\ude00":1,"\ufb33":2}`, []string{"X-Tenant", "a"}}
	const want = "7d42d9056214168f7f137189ff7bce2c4286ee0fe4385cef736b16a0a677f533"
	if got := request.of(t, newRoute(config)); hex.EncodeToString(got[:]) != want {
		t.Errorf("got %x", got)
	}
}

func spelled(mediaType string) string {
	text, _ := mediaTypeOf(http.Header{"Content-Type": {mediaType}})
	return text
}

// FuzzFingerprint: equal requests have equal fingerprints, and a part moved from one place to the next has not.
func FuzzFingerprint(f *testing.F) {
	f.Add("/a", "x=1", "text/plain", "body")
	f.Add("/a", "x=1&x=2", "application/json", `{"a":1}`)
	f.Fuzz(func(t *testing.T, path, query, mediaType, body string) {
		if !strings.HasPrefix(path, "/") {
			return
		}
		rt := newRoute(proxyconfig.Route{CanonicalJSON: true})
		fingerprint := func(path, query, mediaType, body string) keystore.Fingerprint {
			req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
			req.URL.Path, req.URL.RawPath, req.URL.RawQuery = path, "", query
			req.Header.Set("Content-Type", mediaType)
			s := &spool{memoryBytes: 1 << 20, bodyBytes: 1 << 20, memory: &budget{limit: 1 << 30}, files: &budget{limit: 1 << 30}, chunks: &chunks{}}
			taken, err := s.take(req)
			must(t, err)
			defer taken.close()
			return rt.fingerprint(req, taken)
		}
		same := fingerprint(path, query, mediaType, body)
		if same != fingerprint(path, query, mediaType, body) {
			t.Fatal("not deterministic")
		}
		if same == fingerprint(path+"x", query, mediaType, body) || same == fingerprint(path, query+"&x", mediaType, body) {
			t.Fatal("another target has the same fingerprint")
		}
		if same == fingerprint(path, query, "x/"+mediaType, body) && spelled(mediaType) != spelled("x/"+mediaType) {
			t.Fatal("another media type has the same fingerprint")
		}
	})
}

// FuzzCanonicalJSON: the canonical form is a fixed point, and holds what encoding/json reads in the document.
func FuzzCanonicalJSON(f *testing.F) {
	for _, seed := range []string{`{"b":[1,2.0],"a":"\u00e9"}`, `{"a":1,"a":2}`, `"\ud83d\ude00"`, `[[],{}]`, ` null `, "\"\xff\"", `{"a":{"b":{"c":-0}}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, document []byte) {
		got, ok := canonicalJSON(document, nil)
		if !ok {
			return
		}
		if again, ok := canonicalJSON(got, nil); !ok || !bytes.Equal(again, got) {
			t.Fatalf("%q becomes %q, and that %q", document, got, again)
		}
		if !reflect.DeepEqual(decodeNumbers(t, document), decodeNumbers(t, got)) {
			t.Fatalf("%q becomes %q, which is another document", document, got)
		}
	})
}

func decodeNumbers(t *testing.T, document []byte) (value any) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	must(t, decoder.Decode(&value))
	return value
}

// TestHostInTheFingerprint: net/http keeps it apart from the header, and its case does not count.
func TestHostInTheFingerprint(t *testing.T) {
	for _, listed := range []bool{false, true} {
		r := start(t, func(s *setup) {
			if listed {
				s.config.Routes[0].FingerprintHeaders = []string{"Host"}
			}
		})
		post := func(host string) reply {
			return r.raw("POST /payments HTTP/1.1\nHost: " + host + "\nX-Client-Id: alice\nIdempotency-Key: k\nContent-Length: 0\nConnection: close\n\n")
		}
		want(t, post("shop.example"), 201, "", false)
		want(t, post("SHOP.example"), 201, "", true)
		if other := post("bank.example"); listed {
			want(t, other, 422, "key-reused", false)
		} else {
			want(t, other, 201, "", true)
		}
	}
}
