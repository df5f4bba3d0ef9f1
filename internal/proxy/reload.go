// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/sealed"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

const watchInterval = time.Second

// watcher loads the files and loads them again when their content changes. It reads them rather than being told: Kubernetes replaces a mounted
// directory by a symbolic link, which notifications of a file do not show.
type watcher struct {
	proxy    *Proxy
	settings Settings
	open     Opener

	document []byte // as last looked at, good or bad
	dsn      []byte
	config   proxyconfig.Config // as last loaded

	keys       []byte // as last looked at, if keysLooked
	keysLooked bool
	ring       atomic.Pointer[sealed.Ring] // as last loaded

	running atomic.Pointer[proxyconfig.Running]
}

// start loads the files for the first time. Without a configuration there is nothing to serve; without a store there is, and the file may get better.
func (w *watcher) start(ctx context.Context) error {
	document, err := os.ReadFile(w.settings.ConfigFile)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	config, err := proxyconfig.Decode(document)
	if err != nil {
		return err
	}
	w.document, w.config = document, config
	w.readKeys()
	w.dsn, err = os.ReadFile(w.settings.DSNFile)
	if err == nil {
		var o opened
		if o, err = w.openStore(ctx, config); err == nil {
			w.proxy.Load(config, o.store, o.identity) //nolint:contextcheck // a store outlives the moment that it was opened in
			w.proxy.metrics.dsnLoaded.Set(1)
		}
	}
	if err != nil {
		w.settings.Log.Error("key store is not usable", "error", err)
		w.proxy.Load(config, absentStore{}, "") //nolint:contextcheck // a store outlives the moment that it was opened in
		w.proxy.metrics.dsnLoaded.Set(0)
	}
	w.accepted()
	w.uses()
	return nil
}

// opened is a store and its identity.
type opened struct {
	store    keystore.Store
	identity string
}

func (w *watcher) openStore(ctx context.Context, config proxyconfig.Config) (opened, error) {
	if w.settings.EncryptionKeyFile != "" && w.ring.Load() == nil {
		return opened{}, errNoEncryptionKeys
	}
	dsn := string(bytes.TrimSpace(w.dsn))
	if dsn == "" {
		return opened{}, keystore.ErrDSNInvalid
	}
	store, identity, err := w.open(ctx, config, dsn)
	if err != nil {
		return opened{}, err // not the nil store behind an interface
	}
	return opened{w.seal(store, config.Keyspace), identity}, nil
}

func (w *watcher) accepted() {
	w.proxy.metrics.configLoaded.Set(1)
	w.proxy.metrics.configChanged.Set(float64(w.proxy.now().Unix()))
	w.settings.Log.Info("configuration is loaded", "policy", w.config.Policy.Namespace+"/"+w.config.Policy.Name, "generation", w.config.Policy.Generation)
}

// run looks at the files until ctx ends.
func (w *watcher) run(ctx context.Context) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.look(ctx)
		}
	}
}

// look loads what has changed. What is bad is told once and leaves the last good one in use.
func (w *watcher) look(ctx context.Context) {
	config, configChanged := w.readConfig()
	o := w.readDSN(ctx, config, w.readKeys())
	if !configChanged && o.store == nil {
		return
	}
	if o.store == nil && storeOf(config) != storeOf(w.config) {
		var err error
		if o, err = w.openStore(ctx, config); err != nil {
			w.refuseConfig(err)
			return
		}
	}
	w.config = config
	w.proxy.Load(config, o.store, o.identity) //nolint:contextcheck // a store outlives the moment that it was opened in
	if configChanged {
		w.accepted()
		w.uses()
	} else {
		w.settings.Log.Info("connection string is loaded")
	}
}

// readConfig is the configuration in the file when it has changed and is good, and else the one in use.
func (w *watcher) readConfig() (config proxyconfig.Config, changed bool) {
	document, err := os.ReadFile(w.settings.ConfigFile)
	if err != nil || bytes.Equal(document, w.document) {
		return w.config, false
	}
	w.document = document
	config, err = proxyconfig.Decode(document)
	if err == nil && config.Keyspace != w.config.Keyspace {
		err = errors.New("another keyspace needs another process")
	}
	if err != nil {
		w.refuseConfig(err)
		return w.config, false
	}
	return config, true
}

func (w *watcher) refuseConfig(err error) {
	w.proxy.metrics.configLoaded.Set(0)
	w.refuses()
	w.settings.Log.Error("configuration is not usable: the last good one stays in use", "error", err)
}

// readDSN is a store on the connection string in the file when that has changed, or could not be used before, and is good; else none.
func (w *watcher) readDSN(ctx context.Context, config proxyconfig.Config, again bool) opened {
	dsn, err := os.ReadFile(w.settings.DSNFile)
	if err != nil || bytes.Equal(dsn, w.dsn) && !again {
		return opened{}
	}
	w.dsn = dsn
	o, err := w.openStore(ctx, config)
	if err != nil {
		w.proxy.metrics.dsnLoaded.Set(0)
		w.settings.Log.Error("connection string is not usable: the last good one stays in use", "error", err)
		return opened{}
	}
	w.proxy.metrics.dsnLoaded.Set(1)
	return o
}

// storeOf is the part of a configuration that a store is made from.
func storeOf(config proxyconfig.Config) [2]string {
	return [2]string{config.Store.Type, config.Store.Schema}
}
