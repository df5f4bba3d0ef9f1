// SPDX-License-Identifier: Apache-2.0

package redis

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/idempotency-dev/operator/internal/keystore"
)

const (
	defaultPort = "6379"
	// idleTimeout closes a connection that has not been used for so long.
	idleTimeout    = 45 * time.Second
	connectTimeout = 5 * time.Second
)

// parse reads a connection string:
//
//	redis[s]://[user[:password]@]host[:port][/db][?addr=host:port&...]
//
// Further addr are more servers of the same. With cluster=true they are any servers of a cluster; with master_name=NAME they are sentinels, asked as
// sentinel_username and sentinel_password. ca is the authority of the servers' certificates, PEM in base64. It fails with keystore.ErrDSNInvalid.
func parse(dsn string) (*redis.UniversalOptions, error) {
	u, err := url.Parse(strings.TrimSpace(dsn))
	if err != nil || u.Hostname() == "" || u.Fragment != "" || u.Opaque != "" {
		return nil, keystore.ErrDSNInvalid
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, keystore.ErrDSNInvalid
	}
	o := &redis.UniversalOptions{
		Addrs:            []string{net.JoinHostPort(u.Hostname(), orDefault(u.Port(), defaultPort))},
		Username:         u.User.Username(),
		MasterName:       query.Get("master_name"),
		IsClusterMode:    query.Get("cluster") == "true",
		SentinelUsername: query.Get("sentinel_username"),
		SentinelPassword: query.Get("sentinel_password"),
	}
	o.Password, _ = u.User.Password()
	for _, addr := range query["addr"] {
		host, port, err := net.SplitHostPort(addr)
		if err != nil || host == "" || port == "" {
			return nil, keystore.ErrDSNInvalid
		}
		o.Addrs = append(o.Addrs, addr)
	}
	if path := strings.Trim(u.Path, "/"); path != "" {
		if o.DB, err = strconv.Atoi(path); err != nil || o.DB < 0 {
			return nil, keystore.ErrDSNInvalid
		}
	}
	one := o.MasterName == "" && !o.IsClusterMode
	if one && len(o.Addrs) > 1 || o.IsClusterMode && (o.MasterName != "" || o.DB != 0) || !known(query) {
		return nil, keystore.ErrDSNInvalid
	}
	if o.TLSConfig, err = parseTLS(u, query); err != nil {
		return nil, err
	}
	return o, nil
}

// Identity names the store of c: the same for the same keyspace at the same servers, however they are listed, whatever the user, the password and the
// certificates. It holds no secret. It fails with keystore.ErrDSNInvalid.
func Identity(c Config) (string, error) {
	o, err := parse(c.DSN)
	if err != nil {
		return "", err
	}
	addrs := slices.Clone(o.Addrs)
	slices.Sort(addrs)
	text := fmt.Sprintf("redis %q %q %d %q", slices.Compact(addrs), o.MasterName, o.DB, c.Keyspace)
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:]), nil
}

// known says that query has nothing that would be ignored, and nothing twice that can be only once.
func known(query url.Values) bool {
	for name, values := range query {
		switch name {
		case "addr":
		case "cluster":
			if len(values) != 1 || values[0] != "true" && values[0] != "false" {
				return false
			}
		case "master_name", "sentinel_username", "sentinel_password", "ca":
			if len(values) != 1 {
				return false
			}
		default:
			return false
		}
	}
	return true
}

func parseTLS(u *url.URL, query url.Values) (*tls.Config, error) {
	ca := query.Get("ca")
	switch u.Scheme {
	case "redis":
		if ca != "" {
			return nil, keystore.ErrDSNInvalid
		}
		return nil, nil // nil is no TLS
	case "rediss":
	default:
		return nil, keystore.ErrDSNInvalid
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12} // the driver fills in each server's name
	if ca != "" {
		pem, err := base64.StdEncoding.DecodeString(ca)
		if err != nil {
			return nil, keystore.ErrDSNInvalid
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, keystore.ErrDSNInvalid
		}
	}
	return config, nil
}

// connect makes a client that leaves it to us when to try again.
func connect(o *redis.UniversalOptions, timeout time.Duration, conns int) redis.UniversalClient {
	redis.SetLogger(discard{}) // what it says goes to standard error, in its own form, and shows in our errors as well
	o.Protocol = 2
	o.DisableIdentity = true
	o.MaxRetries, o.DialerRetries = -1, 1
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = min(connectTimeout, timeout), timeout, timeout, timeout
	o.ContextTimeoutEnabled = true
	o.PoolSize, o.PipelinePoolSize = conns, -1
	o.ConnMaxIdleTime = idleTimeout
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewUniversalClient(o)
}
