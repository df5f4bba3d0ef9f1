// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func environment(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

var required = []string{"--config", "c", "--dsn-file", "d", "--upstream", "http://127.0.0.1:8080"}

func TestParse(t *testing.T) {
	c, err := parse([]string{"--config", "flag", "--upstream", "h2c://127.0.0.1:8080/", "--in-flight=7"}, environment(
		"IDEMPOTENCY_CONFIG", "environment", "IDEMPOTENCY_DSN_FILE", "d", "IDEMPOTENCY_LOG_LEVEL", "warn", "IDEMPOTENCY_DRAIN_DELAY", "1s", "IDEMPOTENCY_BODY_BYTES", "5",
		"IDEMPOTENCY_ENCRYPTION_KEY_FILE", "k"), &bytes.Buffer{})
	must(t, err)
	s := c.settings
	if s.ConfigFile != "flag" || s.DSNFile != "d" || s.EncryptionKeyFile != "k" || s.Upstream.Scheme != "h2c" || s.Limits.InFlight != 7 || s.Limits.BodyBytes != 5 || s.DrainDelay != time.Second || c.logLevel.String() != "WARN" {
		t.Errorf("got %+v", c)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, row := range []struct {
		args   []string
		env    func(string) string
		reason string
	}{
		{nil, environment(), "nothing"},
		{required[2:], environment(), "no configuration"},
		{append(required[:2:2], required[4:]...), environment(), "no connection string"},
		{required[:4], environment(), "no upstream"},
		{append(required[:4:4], "--upstream", "127.0.0.1:8080"), environment(), "no scheme"},
		{append(required[:4:4], "--upstream", "ftp://x:1"), environment(), "another scheme"},
		{append(required[:4:4], "--upstream", "http://x:1/path"), environment(), "a path"},
		{append(required[:4:4], "--upstream", "http://u:p@x:1"), environment(), "a password"},
		{append(required[:6:6], "extra"), environment(), "an argument"},
		{append(required[:6:6], "--waiters", "0"), environment(), "a limit that is not positive"},
		{append(required[:6:6], "--drain-timeout", "0s"), environment(), "no time to drain"},
		{append(required[:6:6], "--spool", ""), environment("IDEMPOTENCY_SPOOL", ""), "no spool"},
		{append(required[:6:6], "--log-level", "loud"), environment(), "no level"},
		{append(required[:6:6], "--upstream-ca", "ca.pem"), environment(), "an authority for an upstream without TLS"},
		{required, environment("IDEMPOTENCY_WAITERS", "many"), "no number in the environment"},
	} {
		if _, err := parse(row.args, row.env, &bytes.Buffer{}); err == nil {
			t.Errorf("%v: %s is accepted", row.args, row.reason)
		}
	}
}

func TestVersionAndHelp(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"--help"}} {
		var out bytes.Buffer
		if err := run(context.Background(), args, environment(), &out); err != nil || out.Len() == 0 {
			t.Errorf("%v: %v %q", args, err, out.String())
		}
	}
}

// TestImports: the sidecar is small because it knows nothing of Kubernetes, and the operator nothing of the sidecar's inside.
func TestImports(t *testing.T) {
	const module = "github.com/idempotency-dev/operator/"
	for _, row := range []struct {
		program   string
		forbidden []string
	}{
		// With text/template, which calls methods by name, the linker keeps every method there is: 8 MiB more.
		{"cmd/proxy", []string{"k8s.io", "sigs.k8s.io", module + "api", "text/template", "html/template"}},
		{"cmd/manager", []string{module + "internal/proxy"}},
		{"internal/proxy", []string{"github.com/jackc", "k8s.io", module + "internal/keystore/postgres"}},
		{"internal/proxyconfig", []string{module + "internal/keystore", module + "api"}},
	} {
		command := exec.Command("go", "list", "-deps", module+row.program)
		out, err := command.Output()
		must(t, err)
		for dependency := range strings.FieldsSeq(string(out)) {
			for _, prefix := range row.forbidden {
				if strings.HasPrefix(dependency+"/", prefix+"/") {
					t.Errorf("%s links %s", row.program, dependency)
				}
			}
		}
	}
}
