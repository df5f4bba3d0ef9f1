// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/keystore/sealed"
	"github.com/idempotency-dev/operator/internal/localpg"
	"github.com/idempotency-dev/operator/internal/policy"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
	"github.com/idempotency-dev/operator/test/sampleapp/payments"
)

// trial is a policy tried without a cluster.
type trial struct {
	file     policyFile
	upstream string
	listen   string
	dsn      string
	dsnFile  string
	keyFile  string
	demo     bool
	// postgres is the major version of the private server; empty: any.
	postgres string
}

func newLocal(env func(string) string, s streams) *cobra.Command {
	var t trial
	cmd := &cobra.Command{
		Use:   "local -f FILE",
		Short: "Run a policy in front of an app on this machine, without a cluster",
		Long: `Run a policy's sidecar in front of an app on this machine, without a cluster. What the operator does in a cluster is done here too: the
schema and the keyspace are made, and partitions are made ahead and dropped.

Without --dsn or --dsn-file a private PostgreSQL server runs for as long as the command does; it is installed if there is none.
The environment variable POSTGRES_VERSION picks its major version. Without --upstream the app is a small payments service.`,
		Example: `  kubectl idempotency local -f policy.yaml --upstream http://127.0.0.1:3000
  kubectl idempotency local -f config/samples/payments.yaml --demo`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t.postgres = env("POSTGRES_VERSION")
			if t.demo && !cmd.Flags().Changed("listen") {
				t.listen = "127.0.0.1:0"
			}
			return t.run(cmd.Context(), s)
		},
	}
	t.file.bind(cmd)
	cmd.Flags().StringVar(&t.upstream, "upstream", "", "URL of the app; the bundled payments service without it")
	cmd.Flags().StringVar(&t.listen, "listen", "127.0.0.1:8080", "address to serve on; with --demo any free port")
	cmd.Flags().StringVar(&t.dsn, "dsn", "", "connection string of a database (others on this machine can see it; --dsn-file hides it)")
	cmd.Flags().StringVar(&t.dsnFile, "dsn-file", "", "file with the connection string of a database")
	cmd.Flags().StringVar(&t.keyFile, "encryption-key-file", "", "file with the keys that recorded answers are encrypted with; needed for a policy that encrypts")
	cmd.Flags().BoolVar(&t.demo, "demo", false, "send some payments, print what happened, and end; fail unless it is what is promised")
	cmd.MarkFlagsMutuallyExclusive("dsn", "dsn-file")
	cmd.MarkFlagsMutuallyExclusive("demo", "upstream")
	return cmd
}

// run starts everything in the order of dependence and ends it in the reverse.
func (t *trial) run(ctx context.Context, s streams) (err error) {
	say := func(format string, args ...any) { fmt.Fprintf(s.err, format+"\n", args...) }
	p, err := t.file.read(s.in)
	if err != nil {
		return err
	}
	if err := t.checkKeys(p); err != nil {
		return err
	}
	config, err := policy.Compile(p)
	if err != nil {
		return err
	}
	if p.Spec.Store.Postgres == nil {
		return fmt.Errorf("policy %s keeps its entries in Redis, and this command runs PostgreSQL only: set spec.store.postgres in the file", p.Name)
	}
	app := payments.New()
	demo, err := newDemo(config, app, s.out)
	if t.demo && err != nil {
		return err
	}
	upstream, stopApp, err := t.app(ctx, app)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopApp()) }()
	dsn, stopDatabase, err := t.database(ctx, say)
	if err != nil {
		return err
	}
	defer stopDatabase()
	keeper, err := newKeeper(ctx, dsn, p)
	if err != nil {
		return err
	}
	defer keeper.close()
	if err := keeper.prepare(ctx, say); err != nil {
		return err
	}
	sidecar, err := startSidecar(ctx, front{config: config, dsn: dsn, keyFile: t.keyFile, upstream: upstream, listen: t.listen}, s.err)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sidecar.stop()) }()

	if t.demo {
		say("sending payments through the sidecar at %s\n", sidecar.url)
		return demo.run(ctx, sidecar.url)
	}
	say("serving %s/%s at %s in front of %s; metrics at %s/metrics\n", p.Namespace, p.Name, sidecar.url, upstream, sidecar.admin)
	fmt.Fprintf(s.out, "%s\n", example(config, sidecar.url))
	say("\nCtrl-C ends it")
	keeper.maintain(ctx, sidecar, say)
	return nil
}

// checkKeys refuses to record in clear what the policy says to encrypt, and keys that the sidecar could not read.
func (t *trial) checkKeys(p *v1alpha1.IdempotencyPolicy) error {
	if t.keyFile == "" {
		if p.Spec.Store.EncryptionKeySecretRef != nil {
			return errors.New("the policy encrypts answers, and there is no Secret to read the keys from: --encryption-key-file is needed")
		}
		return nil
	}
	text, err := os.ReadFile(t.keyFile)
	if err == nil {
		_, err = sealed.ParseRing(text)
	}
	if err != nil {
		return fmt.Errorf("--encryption-key-file: %w", err)
	}
	return nil
}

// database is the connection string of the database to use, and what ends a private server.
func (t *trial) database(ctx context.Context, say func(string, ...any)) (dsn string, stop func(), err error) {
	switch {
	case t.dsn != "":
		return t.dsn, func() {}, nil
	case t.dsnFile != "":
		dsn, err := readDSN(t.dsnFile)
		return dsn, func() {}, err
	}
	say("starting a private PostgreSQL server")
	server, err := localpg.Start(ctx, localpg.Options{Version: t.postgres})
	if err != nil {
		return "", nil, fmt.Errorf("start private PostgreSQL: %w", err)
	}
	return server.DSN("postgres"), server.Stop, nil
}

func readDSN(path string) (string, error) {
	text, err := os.ReadFile(path) //nolint:gosec // the user names it
	if err != nil {
		return "", fmt.Errorf("read connection string: %w", err)
	}
	dsn := strings.TrimSpace(string(text))
	if dsn == "" {
		return "", fmt.Errorf("read connection string: %s is empty", path)
	}
	return dsn, nil
}

// app is the URL of the app behind the sidecar, and what ends the bundled one.
func (t *trial) app(ctx context.Context, bundled *payments.Service) (*url.URL, func() error, error) {
	if t.upstream == "" {
		return startApp(ctx, bundled)
	}
	upstream, err := url.Parse(t.upstream)
	if err != nil || !slices.Contains([]string{"http", "https", "h2c"}, upstream.Scheme) || upstream.Host == "" || strings.Trim(upstream.Path, "/") != "" {
		return nil, nil, fmt.Errorf("--upstream %q is not a URL such as http://127.0.0.1:3000", t.upstream)
	}
	return upstream, func() error { return nil }, nil
}

// example is a command line that sends a request of the first route.
func example(config proxyconfig.Config, url string) string {
	route := config.Routes[0]
	var b strings.Builder
	fmt.Fprintf(&b, "curl -i -X %s '%s%s' -H '%s: %s' -H 'Content-Type: application/json' -d '%s'", route.Methods[0], url, route.Path, route.KeyHeader,
		"first-try", `{"amount":1200,"currency":"EUR"}`)
	switch config.Client.Type {
	case "Header":
		fmt.Fprintf(&b, " -H '%s: alice'", config.Client.Header)
	case "JWT":
		b.WriteString(` -H "Authorization: Bearer $TOKEN"`)
	case "Authorization":
		b.WriteString(" -H 'Authorization: Bearer alice'")
	}
	return b.String()
}
