// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/idempotency-dev/operator/internal/proxy"
)

// config is what the command line and the environment say.
type config struct {
	settings proxy.Settings
	logLevel slog.Level
}

// parse reads flags, then for those that are not given the environment: --dsn-file is IDEMPOTENCY_DSN_FILE. It returns nil when the user asked for
// help and got it.
func parse(args []string, env func(string) string, out io.Writer) (*config, error) {
	c := &config{}
	var upstream string
	flags := flag.NewFlagSet("proxy", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&c.settings.ConfigFile, "config", "", "`file` with the compiled policy (required)")
	flags.StringVar(&c.settings.DSNFile, "dsn-file", "", "`file` with the key store's connection string (required)")
	flags.StringVar(&c.settings.EncryptionKeyFile, "encryption-key-file", "", "`file` with the keys that recorded answers are encrypted with; none: they are recorded in clear")
	flags.StringVar(&upstream, "upstream", "", "`URL` of the app: http, https or h2c, with host and port (required)")
	flags.StringVar(&c.settings.UpstreamCA, "upstream-ca", "", "`file` with the authorities of an https upstream (default: the system's; on the loopback the app is not verified)")
	flags.StringVar(&c.settings.UpstreamName, "upstream-name", "", "`name` that the certificate of an https upstream has to hold (default: the URL's host)")
	flags.StringVar(&c.settings.Listen, "listen", ":15600", "`address` for traffic")
	flags.StringVar(&c.settings.Admin, "admin", ":15601", "`address` for probes and metrics")
	flags.BoolVar(&c.settings.Pprof, "pprof", false, "serve profiles below /debug/pprof/ on the admin address")
	flags.StringVar(&c.settings.Spool, "spool", "/var/lib/idempotency", "`directory` of this process alone, for large bodies and results that the store has not taken yet")
	flags.TextVar(&c.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	flags.DurationVar(&c.settings.DrainDelay, "drain-delay", 5*time.Second, "how long to serve on after the order to end; shorter when the app has ended")
	flags.DurationVar(&c.settings.DrainTimeout, "drain-timeout", 30*time.Second, "how long requests in flight have from then on")
	limitFlags(flags, &c.settings.Limits)
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, nil
		}
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("parse arguments: unexpected %q", flags.Arg(0))
	}
	if err := fromEnvironment(flags, env); err != nil {
		return nil, err
	}
	var err error
	if c.settings.Upstream, err = parseUpstream(upstream); err != nil {
		return nil, err
	}
	return c, c.validate()
}

func limitFlags(flags *flag.FlagSet, l *proxy.Limits) {
	*l = proxy.DefaultLimits()
	flags.IntVar(&l.HeaderBytes, "header-bytes", l.HeaderBytes, "of a request's line and header together; more is 431")
	flags.Int64Var(&l.BodyMemoryBytes, "body-memory-bytes", l.BodyMemoryBytes, "of a request's body held in memory; the rest goes to the spool")
	flags.Int64Var(&l.BodyBytes, "body-bytes", l.BodyBytes, "of a request's body; more is 413")
	flags.Int64Var(&l.SpillBytes, "spill-bytes", l.SpillBytes, "of all bodies in the spool together; more is 503")
	flags.Int64Var(&l.MemoryBytes, "memory-bytes", l.MemoryBytes, "of all bodies and answers in memory together; then bodies go to the spool, and answers are recorded without their body")
	flags.IntVar(&l.InFlight, "in-flight", l.InFlight, "enforced requests at once; more is 503")
	flags.IntVar(&l.Waiters, "waiters", l.Waiters, "requests that wait for another with the same key, at once; more are 409")
	flags.Int64Var(&l.JournalBytes, "journal-bytes", l.JournalBytes, "of results that the store has not taken yet; with more, enforced requests are 503")
	flags.DurationVar(&l.ClientTimeout, "client-timeout", l.ClientTimeout, "for a client to send its header, or its body (and 1s more for every 8 KiB), or to take the next part of its answer")
	flags.DurationVar(&l.IdleTimeout, "idle-timeout", l.IdleTimeout, "of a client's connection between requests")
	flags.DurationVar(&l.StoreTimeout, "store-timeout", l.StoreTimeout, "of one call to the key store")
	flags.DurationVar(&l.Lease, "lease", l.Lease, "how long this process counts as alive after it last said so")
}

// fromEnvironment sets the flags that were not given.
func fromEnvironment(flags *flag.FlagSet, env func(string) string) error {
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var errs []error
	flags.VisitAll(func(f *flag.Flag) {
		name := "IDEMPOTENCY_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value := env(name)
		if given[f.Name] || value == "" {
			return
		}
		if err := f.Value.Set(value); err != nil {
			errs = append(errs, fmt.Errorf("parse environment variable %s: %w", name, err))
		}
	})
	return errors.Join(errs...)
}

func parseUpstream(text string) (*url.URL, error) {
	if text == "" {
		return nil, errors.New("check upstream: it is required, such as http://127.0.0.1:8080")
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Path != "" && u.Path != "/" {
		return nil, errors.New("check upstream: want scheme, host and port and nothing else, such as http://127.0.0.1:8080")
	}
	switch u.Scheme {
	case "http", "https", "h2c":
		return u, nil
	}
	return nil, fmt.Errorf("check upstream: scheme %q is none of http, https, h2c", u.Scheme)
}

func (c *config) validate() error {
	s := c.settings
	switch {
	case s.ConfigFile == "":
		return errors.New("check config: it is required")
	case s.DSNFile == "":
		return errors.New("check dsn-file: it is required")
	case s.Spool == "":
		return errors.New("check spool: it is required")
	case s.Upstream.Scheme != "https" && (s.UpstreamCA != "" || s.UpstreamName != ""):
		return errors.New("check upstream-ca and upstream-name: they belong to an https upstream")
	case s.DrainDelay < 0 || s.DrainTimeout <= 0:
		return errors.New("check drain-delay and drain-timeout: want durations, the second above zero")
	}
	return s.Limits.Validate()
}
