// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/base64"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// keyRing has the keys of ids, the first of them active.
func keyRing(ids ...string) string {
	text := ""
	for _, id := range ids {
		text += id + " " + base64.StdEncoding.EncodeToString([]byte(strings.Repeat(id[:1], 32))) + "\n"
	}
	return text
}

// encrypting launches a process whose key file says keys; none: there is no file.
func encrypting(t *testing.T, keys string) *process {
	return launch(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/payments/4711")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "\x00secret\xff")
	}, func(p *process, s *Settings) {
		s.EncryptionKeyFile = filepath.Join(p.dir, "keys")
		if keys != "" {
			p.write("keys", keys)
		}
	})
}

// stored wants the entry of key to be sealed with the key of id.
func (p *process) stored(key, id string) {
	p.t.Helper()
	answer := p.storeOf("one").get("alice", key).answer
	if answer.Tombstone != keystore.Sealed || answer.Header.Get("Idempotency-Sealed") != id || strings.Contains(string(answer.Body), "secret") || len(answer.Header) != 1 {
		p.t.Errorf("%s is stored as %q %v %q", key, answer.Tombstone, answer.Header, answer.Body)
	}
}

// TestEncryption: what is stored is sealed, and a replay is what it was.
func TestEncryption(t *testing.T) {
	p := encrypting(t, keyRing("one"))
	first, again := p.post("k", `{}`), p.post("k", `{}`)
	want(t, first, 201, "", false)
	want(t, again, 201, "", true)
	if again.Body != "\x00secret\xff" || again.Header.Get("Location") != "/payments/4711" {
		t.Errorf("replayed %q %v", again.Body, again.Header)
	}
	p.stored("k", "one")
	p.executions(1)
}

// TestReloadOfTheEncryptionKeys: the keys are rotated while the process runs. A bad file, or none, leaves the last good ones in use, and is told.
func TestReloadOfTheEncryptionKeys(t *testing.T) {
	p := encrypting(t, keyRing("one"))
	want(t, p.post("k1", `{}`), 201, "", false)
	for _, bad := range []string{"one SECRET", "", keyRing("one", "one")} {
		p.write("keys", bad)
		eventually(t, "the bad one is noticed", func() bool { return p.metric("encryption_keys_last_reload_successful 0") })
		want(t, p.post("k1", `{}`), 201, "", true)
		p.write("keys", keyRing("one"))
		eventually(t, "the good one is back", func() bool { return p.metric("encryption_keys_last_reload_successful 1") })
	}
	p.write("keys", "")
	eventually(t, "there are none", func() bool { return p.metric("encryption_keys_last_reload_successful 0") })
	want(t, p.post("k2", `{}`), 201, "", false)
	p.stored("k2", "one")

	p.write("keys", keyRing("two", "one"))
	eventually(t, "the new one is in use", func() bool { return p.metric("encryption_keys_last_reload_successful 1") })
	want(t, p.post("k3", `{}`), 201, "", false)
	p.stored("k3", "two")
	want(t, p.post("k1", `{}`), 201, "", true)

	p.write("keys", keyRing("two"))
	eventually(t, "the old one is gone", func() bool { return p.post("k1", `{}`).problem() == "answer-not-kept" })
	if got := p.post("k1", `{}`); !strings.Contains(got.Body, `"originalStatus":201`) || strings.Contains(got.Body, "secret") {
		t.Errorf("got %s", got.Body)
	}
	want(t, p.post("k3", `{}`), 201, "", true)
	if p.metric("answers_unreadable_total 0") {
		t.Error("an answer that cannot be decrypted is not counted")
	}
	p.executions(3)
}

// TestNoEncryptionKeysAtStart: nothing is executed that could only be recorded in clear.
func TestNoEncryptionKeysAtStart(t *testing.T) {
	for _, keys := range []string{"", "one SECRET"} {
		p := encrypting(t, keys)
		want(t, p.post("k", `{}`), 503, "store-unavailable", false)
		if !p.metric("encryption_keys_last_reload_successful 0") || !p.metric("dsn_last_reload_successful 0") {
			t.Error("the metrics do not tell")
		}
		p.executions(0)
		p.write("keys", keyRing("one"))
		eventually(t, "the keys are in use", func() bool { return p.post("k", `{}`).Status == 201 })
		p.stored("k", "one")
		want(t, p.post("k", `{}`), 201, "", true)
		p.executions(1)
	}
}

// TestEncryptedAnswerWithoutKeys: a sidecar that does not encrypt, beside one that does, replays no ciphertext and executes nothing again.
func TestEncryptedAnswerWithoutKeys(t *testing.T) {
	p := encrypting(t, keyRing("one"))
	want(t, p.post("k", `{}`), 201, "", false)
	other := launch(t, nil, func(o *process, _ *Settings) { o.stores["one"] = p.storeOf("one") })
	want(t, other.post("k", `{}`), 409, "answer-not-kept", false)
	other.executions(0)
	want(t, p.post("k", `{}`), 201, "", true)
}
