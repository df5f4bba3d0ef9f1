// SPDX-License-Identifier: Apache-2.0

package localredis

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// slots of a cluster.
const slots = 16384

// ClusterOptions of a cluster.
type ClusterOptions struct {
	// Primaries is how many servers have slots, evenly; Replicas how many each of them has, and Spare how many have neither.
	Primaries, Replicas, Spare int
	// Settings for every server.
	Settings map[string]string
	// Now is as in Options.
	Now time.Time
}

// Cluster is a running cluster: the primaries by their slots, then their replicas in the same order, then the spare ones.
type Cluster struct{ Servers []*Server }

// StartCluster starts the servers, joins them and returns when each of them says that all slots are served.
func StartCluster(ctx context.Context, o ClusterOptions) (*Cluster, error) {
	c := &Cluster{}
	if !o.Now.IsZero() {
		o.Now = o.Now.Add(-time.Hour) // time has to pass before a cluster takes writes
	}
	err := c.start(ctx, o)
	if err == nil {
		err = c.join(ctx, o)
	}
	if err == nil {
		err = c.await(ctx, o)
	}
	if err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// Stop ends every server.
func (c *Cluster) Stop() {
	for _, s := range c.Servers {
		s.Stop()
	}
}

// SetClock stops the clock of every server at now.
func (c *Cluster) SetClock(now time.Time) error {
	for _, s := range c.Servers {
		if err := s.SetClock(now); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) start(ctx context.Context, o ClusterOptions) error {
	for range o.Primaries*(1+o.Replicas) + o.Spare {
		bus, err := freePort("127.0.0.1")
		if err != nil {
			return err
		}
		settings := map[string]string{"cluster-enabled": "yes", "cluster-port": strconv.Itoa(bus)}
		maps.Copy(settings, o.Settings)
		s, err := Start(ctx, Options{Settings: settings, Now: o.Now})
		if err != nil {
			return err
		}
		c.Servers = append(c.Servers, s)
	}
	return nil
}

// join shares out the slots, introduces the servers to each other, and then lets the replicas follow.
func (c *Cluster) join(ctx context.Context, o ClusterOptions) error {
	for i, s := range c.Servers {
		err := s.Do(ctx, func(r *redis.Client) error {
			if err := r.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(); err != nil {
				return err
			}
			if i < o.Primaries {
				if err := r.ClusterAddSlotsRange(ctx, i*slots/o.Primaries, (i+1)*slots/o.Primaries-1).Err(); err != nil {
					return err
				}
			}
			first := c.Servers[0]
			return r.Do(ctx, "CLUSTER", "MEET", first.options.Listen, first.options.Port, first.options.Settings["cluster-port"]).Err()
		})
		if err != nil {
			return fmt.Errorf("join cluster: %w", err)
		}
	}
	for i := range o.Primaries * o.Replicas {
		id, err := c.Servers[i%o.Primaries].ID(ctx)
		if err != nil {
			return err
		}
		replica := c.Servers[o.Primaries+i]
		err = c.until(ctx, o, func() error {
			return replica.Do(ctx, func(r *redis.Client) error { return r.ClusterReplicate(ctx, id).Err() })
		})
		if err != nil {
			return fmt.Errorf("join cluster: %w", err)
		}
	}
	return nil
}

// await waits until every server knows all, and every replica its primary's data.
func (c *Cluster) await(ctx context.Context, o ClusterOptions) error {
	for i, s := range c.Servers {
		err := c.until(ctx, o, func() error {
			return s.Do(ctx, func(r *redis.Client) error {
				info, err := r.ClusterInfo(ctx).Result()
				if err != nil {
					return err
				}
				for _, want := range []string{"cluster_state:ok", fmt.Sprintf("cluster_slots_ok:%d\r", slots), fmt.Sprintf("cluster_known_nodes:%d\r", len(c.Servers))} {
					if !strings.Contains(info, want) {
						return fmt.Errorf("cluster is not %q", want)
					}
				}
				replication, err := r.Info(ctx, "replication").Result()
				if i >= o.Primaries && i < o.Primaries*(1+o.Replicas) && err == nil && !strings.Contains(replication, "master_link_status:up") {
					return fmt.Errorf("replica %d has not its primary's data", i)
				}
				return err
			})
		})
		if err != nil {
			return fmt.Errorf("await cluster: %w", err)
		}
	}
	return nil
}

// until repeats try until it succeeds. A clock that stands still is moved on in between.
func (c *Cluster) until(ctx context.Context, o ClusterOptions, try func() error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		if !o.Now.IsZero() {
			if err := c.SetClock(c.Servers[0].options.Now.Add(100 * time.Millisecond)); err != nil {
				return err
			}
		}
	}
}

// Do runs commands on a connection of its own, without TLS.
func (s *Server) Do(ctx context.Context, commands func(*redis.Client) error) error {
	client := redis.NewClient(&redis.Options{Addr: s.Addr(), Protocol: 2, DisableIdentity: true})
	defer func() { _ = client.Close() }()
	if err := client.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	return commands(client)
}

// ID is the server's name in its cluster.
func (s *Server) ID(ctx context.Context) (id string, err error) {
	err = s.Do(ctx, func(r *redis.Client) error {
		id, err = r.Do(ctx, "CLUSTER", "MYID").Text()
		return err
	})
	if err != nil {
		return "", fmt.Errorf("ask for id: %w", err)
	}
	return id, nil
}

// MoveSlot moves a slot with its keys, a few at a time, as redis-cli --cluster reshard does: between calls of step the slot is open on both sides.
func MoveSlot(ctx context.Context, slot int, from, to *Server, step func()) error {
	fromID, err := from.ID(ctx)
	if err != nil {
		return err
	}
	toID, err := to.ID(ctx)
	if err != nil {
		return err
	}
	err = to.Do(ctx, func(target *redis.Client) error {
		return from.Do(ctx, func(source *redis.Client) error {
			if err := target.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID).Err(); err != nil {
				return err
			}
			if err := source.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID).Err(); err != nil {
				return err
			}
			for {
				keys, err := source.ClusterGetKeysInSlot(ctx, slot, 10).Result()
				if err != nil {
					return err
				}
				step()
				if len(keys) == 0 {
					break
				}
				args := []any{"MIGRATE", to.options.Listen, to.options.Port, "", 0, 5000, "KEYS"}
				for _, key := range keys {
					args = append(args, key)
				}
				if err := source.Do(ctx, args...).Err(); err != nil {
					return err
				}
			}
			if err := target.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", toID).Err(); err != nil {
				return err
			}
			return source.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", toID).Err()
		})
	})
	if err != nil {
		return fmt.Errorf("move slot %d: %w", slot, err)
	}
	return nil
}
