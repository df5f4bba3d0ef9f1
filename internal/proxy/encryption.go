// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"errors"
	"os"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/sealed"
)

// errNoEncryptionKeys: answers are to be encrypted, and there was no key to do it with yet. To record them in clear until then would be no mending.
var errNoEncryptionKeys = errors.New("there is no key to encrypt answers with yet")

// readKeys loads the key ring where its file has changed. What is bad is told once and leaves the last good one in use. It reports whether there is
// a ring where there was none.
func (w *watcher) readKeys() (first bool) {
	if w.settings.EncryptionKeyFile == "" {
		return false
	}
	text, err := os.ReadFile(w.settings.EncryptionKeyFile)
	if w.keysLooked && bytes.Equal(text, w.keys) {
		return false
	}
	w.keys, w.keysLooked = text, true
	var ring *sealed.Ring
	if err == nil {
		ring, err = sealed.ParseRing(text)
	}
	if err != nil {
		w.proxy.metrics.keysLoaded.Set(0)
		w.settings.Log.Error("encryption keys are not usable: the last good ones stay in use", "error", err)
		return false
	}
	w.proxy.metrics.keysLoaded.Set(1)
	w.settings.Log.Info("encryption keys are loaded")
	return w.ring.Swap(ring) == nil
}

// seal makes store one whose answers are encrypted. Without a key file it still knows an encrypted answer when it meets one, of another sidecar.
func (w *watcher) seal(store keystore.Store, keyspace string) keystore.Store {
	return sealed.New(store, sealed.Config{Keyspace: keyspace, Ring: w.ring.Load, Unreadable: w.unreadable})
}

func (w *watcher) unreadable(err error) {
	w.proxy.metrics.unreadable.Inc()
	w.settings.Log.Error("recorded answer cannot be decrypted", "error", err)
}
