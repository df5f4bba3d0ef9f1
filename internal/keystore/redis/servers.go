// SPDX-License-Identifier: Apache-2.0

package redis

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// dialer is what the driver connects with; nil: its own. Tests put faults between us and every server of a cluster.
type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// servers is the server, or the servers, that a connection string names, with a lane to each that is in use.
type servers struct {
	options  *redis.UniversalOptions
	timeout  time.Duration
	replicas int
	single   *redis.Client        // nil: cluster
	cluster  *redis.ClusterClient // nil: single
	ctx      context.Context      //nolint:containedctx // the life of the senders, which is ours
	stop     context.CancelFunc
	group    sync.WaitGroup

	mu    sync.Mutex
	lanes map[*redis.Client]*lane
	asked map[string]*redis.Client // servers that a slot moves to, by address: the driver does not know those without slots
}

func openServers(dsn string, timeout time.Duration, replicas int, dial dialer) (*servers, error) {
	options, err := parse(dsn)
	if err != nil {
		return nil, err
	}
	options.Dialer = dial
	s := &servers{options: options, timeout: timeout, replicas: replicas, lanes: map[*redis.Client]*lane{}, asked: map[string]*redis.Client{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	switch client := connect(options, timeout, senders+1).(type) {
	case *redis.ClusterClient:
		s.cluster = client
	case *redis.Client:
		s.single = client
	}
	return s, nil
}

// Close gives back every connection.
func (s *servers) Close() {
	s.mu.Lock()
	s.stop()
	for _, client := range s.asked {
		_ = client.Close()
	}
	s.mu.Unlock()
	if s.cluster != nil {
		_ = s.cluster.Close()
	} else {
		_ = s.single.Close()
	}
	s.group.Wait()
}

// lane to the server that has key, or to the server at address ask.
func (s *servers) lane(ctx context.Context, key, ask string) (*lane, error) {
	client := s.single
	if s.cluster != nil && ask == "" {
		var err error
		if client, err = s.cluster.MasterForKey(ctx, key); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, fmt.Errorf("use store: %w", s.ctx.Err())
	}
	if s.cluster != nil && ask != "" {
		if client = s.asked[ask]; client == nil {
			options := s.options.Simple()
			options.Addr = ask
			client = redis.NewClient(options)
			s.asked[ask] = client
		}
	}
	l := s.lanes[client]
	if l == nil {
		l = s.newLane(client)
		s.lanes[client] = l
	}
	return l, nil
}
