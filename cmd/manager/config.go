// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"time"
)

// Config of the operator.
type Config struct {
	// Namespace is the operator's own.
	Namespace string
	// SidecarImage is injected where a policy names no image.
	SidecarImage string
	// MetricsAddress serves metrics over TLS to whoever may get /metrics; "0" serves none.
	MetricsAddress string
	// ProbeAddress serves /healthz and /readyz.
	ProbeAddress string
	// WebhookPort serves the webhooks.
	WebhookPort int
	// WebhookCertDir holds tls.crt and tls.key, which somebody else renews; they are read again when they change. Empty: the operator makes its
	// own certificate, and writes what to trust into its webhook configurations.
	WebhookCertDir string
	// LeaderElection: of several managers one reconciles. All serve webhooks.
	LeaderElection bool
	// AskSidecars: running sidecars are asked, at their admin port, which configuration they use.
	AskSidecars bool
	// SecretSyncFrom is the namespace whose Secrets ClusterIdempotencyPolicies may have copied into others; empty: they may not.
	SecretSyncFrom string
	// DrainDelay is how long the webhooks are served after the signal to end, while API servers turn to other replicas; 0: not at all.
	DrainDelay time.Duration
	// LogLevel of the program.
	LogLevel slog.Level
}

// parse reads the flags, and what of them the environment says where a flag is not given.
func parse(args []string, env func(string) string) (Config, error) {
	var c Config
	flags := flag.NewFlagSet("manager", flag.ContinueOnError)
	flags.StringVar(&c.Namespace, "namespace", env("POD_NAMESPACE"), "the operator's own namespace; default: POD_NAMESPACE")
	flags.StringVar(&c.SidecarImage, "sidecar-image", "", "image of the sidecar where a policy names none")
	flags.StringVar(&c.MetricsAddress, "metrics-bind-address", ":8443", "address of the metrics, served over TLS to whoever may get /metrics; 0 serves none")
	flags.StringVar(&c.ProbeAddress, "health-probe-bind-address", ":8081", "address of /healthz and /readyz")
	flags.IntVar(&c.WebhookPort, "webhook-port", 9443, "port of the webhooks")
	flags.StringVar(&c.WebhookCertDir, "webhook-cert-dir", env("IDEMPOTENCY_WEBHOOK_CERT_DIR"), "directory with tls.crt and tls.key for the webhooks, which somebody else renews, such as cert-manager; default: IDEMPOTENCY_WEBHOOK_CERT_DIR, or the operator makes its own")
	flags.BoolVar(&c.LeaderElection, "leader-elect", false, "let one of several managers reconcile; all serve webhooks")
	flags.BoolVar(&c.AskSidecars, "ask-sidecars", true, "ask running sidecars, at their admin port, which configuration they use; without that Ready does not say")
	flags.StringVar(&c.SecretSyncFrom, "secret-sync-from", "", "namespace whose Secrets a ClusterIdempotencyPolicy may have copied into the namespaces that it selects, with the rights of config/secretsync; default: no Secret is copied")
	flags.DurationVar(&c.DrainDelay, "drain-delay", 10*time.Second, "how long webhooks are served after the signal to end, while API servers turn to other replicas")
	flags.TextVar(&c.LogLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	if err := flags.Parse(args); err != nil {
		return Config{}, err
	}
	switch {
	case flags.NArg() > 0:
		return Config{}, fmt.Errorf("there is no command %q", flags.Arg(0))
	case c.Namespace == "":
		return Config{}, errors.New("the operator's own namespace is needed: set --namespace or POD_NAMESPACE")
	case c.SidecarImage == "":
		return Config{}, errors.New("the sidecar's image is needed: set --sidecar-image")
	case c.SecretSyncFrom == c.Namespace:
		return Config{}, fmt.Errorf("--secret-sync-from %s is the operator's own namespace, whose Secrets are for nobody else: use another", c.SecretSyncFrom)
	case c.DrainDelay < 0:
		return Config{}, fmt.Errorf("--drain-delay %s is negative", c.DrainDelay)
	case c.WebhookPort < 1 || c.WebhookPort > 65535:
		return Config{}, fmt.Errorf("--webhook-port %d is not a port number", c.WebhookPort)
	}
	return c, nil
}
