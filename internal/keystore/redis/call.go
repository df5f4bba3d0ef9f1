// SPDX-License-Identifier: Apache-2.0

package redis

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// retries after a connection was lost.
	retries = 2
	// firstPause and lastPause between two attempts while a slot moves or a cluster settles.
	firstPause = 2 * time.Millisecond
	lastPause  = 100 * time.Millisecond
)

// call runs a script once, wherever its first key is, and again when an attempt certainly changed nothing and another may fare better, and when a
// connection is lost: every script may be repeated. repeated says that an earlier attempt may have taken effect.
func (s *servers) call(ctx context.Context, c command) (r reply, repeated bool) {
	var ask string
	pause := firstPause
	for lost := 0; ; {
		var l *lane
		l, r = s.attempt(ctx, c, ask)
		if r.err == nil || ctx.Err() != nil {
			return r, repeated
		}
		code := codeOf(r.err)
		if code == "NOSCRIPT" { // the server has started anew, or somebody has flushed its scripts
			if err := l.client.ScriptLoad(ctx, c.script.text).Err(); err != nil {
				return reply{err: err}, repeated
			}
			continue
		}
		ask = ""
		switch code {
		case "":
			if lost++; lost > retries {
				return r, repeated
			}
			repeated = true
			s.reload(ctx)
			continue
		case "ASK":
			ask, _ = redis.IsAskError(r.err)
			continue
		case "MOVED":
			s.reload(ctx)
		case "TRYAGAIN": // some of the keys have moved already
		case "READONLY", "CLUSTERDOWN": // a failover is going on, or has just ended
			if lost++; lost > retries {
				return r, repeated
			}
			s.reload(ctx)
		default:
			return r, repeated
		}
		if !sleep(ctx, pause) {
			return r, repeated
		}
		pause = min(2*pause, lastPause)
	}
}

// attempt makes one try, at the server that has the first key, or at the one that was named in an answer ASK.
func (s *servers) attempt(ctx context.Context, c command, ask string) (*lane, reply) {
	l, err := s.lane(ctx, c.keys[0], ask)
	if err != nil {
		return nil, reply{err: err}
	}
	c.asking = ask != ""
	return l, l.do(ctx, c)
}

// reload lets the driver look again for who has which slots.
func (s *servers) reload(ctx context.Context) {
	if s.cluster != nil {
		s.cluster.ReloadState(ctx)
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
