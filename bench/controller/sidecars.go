// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// sidecars stand in for those of all pods. Those of one policy share an address of the loopback, and take up a ConfigMap at once.
type sidecars struct {
	server *http.Server

	mu       sync.Mutex
	policies map[string]types.NamespacedName // by address
	current  map[types.NamespacedName]string // revision, by ConfigMap
	seen     map[types.NamespacedName]time.Time
	news     chan struct{}
}

func newSidecars() *sidecars {
	s := &sidecars{
		policies: map[string]types.NamespacedName{}, current: map[types.NamespacedName]string{}, seen: map[types.NamespacedName]time.Time{},
		news: make(chan struct{}, 1),
	}
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	return s
}

func (s *sidecars) close() { _ = s.server.Close() }

// addressOf is where the sidecars of a policy listen.
func addressOf(policy int) string { return fmt.Sprintf("127.77.%d.%d", policy/250, 1+policy%250) }

// listen opens the admin port of the i-th policy's sidecars.
func (s *sidecars) listen(ctx context.Context, i int, namespace, policy string) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", addressOf(i)+":15601")
	if err != nil {
		return fmt.Errorf("listen for the sidecars of policy %s: %w", policy, err)
	}
	s.mu.Lock()
	s.policies[listener.Addr().String()] = types.NamespacedName{Namespace: namespace, Name: "idempotency-" + policy}
	s.mu.Unlock()
	go func() { _ = s.server.Serve(listener) }() // ends with close
	return nil
}

// ServeHTTP answers as the sidecar at the address that was asked.
func (s *sidecars) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		http.Error(w, "no address", http.StatusInternalServerError)
		return
	}
	s.mu.Lock()
	revision := s.current[s.policies[at.String()]]
	s.mu.Unlock()
	_ = json.NewEncoder(w).Encode(proxyconfig.Running{Revision: revision})
}

// follow keeps up with every ConfigMap until ctx ends.
func (s *sidecars) follow(ctx context.Context, c client.WithWatch) error {
	changes, err := c.Watch(ctx, &corev1.ConfigMapList{}, client.MatchingLabels{"app.kubernetes.io/managed-by": "idempotency-operator"})
	if err != nil {
		return fmt.Errorf("watch configmaps: %w", err)
	}
	go func() {
		for change := range changes.ResultChan() {
			if config, is := change.Object.(*corev1.ConfigMap); is && change.Type != watch.Deleted {
				s.take(client.ObjectKeyFromObject(config), config.Data[proxyconfig.File])
			}
		}
	}()
	return nil
}

func (s *sidecars) take(name types.NamespacedName, document string) {
	now := time.Now()
	s.mu.Lock()
	s.current[name], s.seen[name] = proxyconfig.Revision([]byte(document)), now
	s.mu.Unlock()
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// changed waits until a ConfigMap changes after an instant, and returns when it did.
func (s *sidecars) changed(ctx context.Context, name types.NamespacedName, after time.Time) (time.Time, error) {
	for {
		s.mu.Lock()
		at := s.seen[name]
		s.mu.Unlock()
		if at.After(after) {
			return at, nil
		}
		select {
		case <-s.news:
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("wait for configmap %s: %w", name, ctx.Err())
		}
	}
}
