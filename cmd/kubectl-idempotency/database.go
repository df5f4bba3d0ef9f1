// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/policy"
)

// target is a policy whose database a command works on: one of a cluster, or one of a file.
type target struct {
	cluster cluster
	name    string
	path    string
	dsnFile string
}

func (t *target) bind(cmd *cobra.Command) {
	t.cluster.bind(cmd)
	cmd.Flags().StringVarP(&t.name, "policy", "p", "", "name of the policy in the cluster")
	cmd.Flags().StringVarP(&t.path, "filename", "f", "", "file with the policy, instead of a cluster; - for standard input")
	cmd.Flags().StringVar(&t.dsnFile, "dsn-file", "", "file with the connection string of the operator's role, instead of the policy's Secret")
	cmd.MarkFlagsOneRequired("policy", "filename")
	cmd.MarkFlagsMutuallyExclusive("policy", "filename")
}

// database is a policy's database, opened with the operator's role. The caller closes admin.
type database struct {
	policy   *v1alpha1.IdempotencyPolicy
	keyspace string
	admin    *postgres.Admin
}

func (t *target) open(ctx context.Context, in io.Reader) (*database, error) {
	p, dsn, err := t.find(ctx, in)
	if err != nil {
		return nil, err
	}
	if p.Spec.Store.Postgres == nil {
		return nil, fmt.Errorf("policy %s keeps its entries in Redis, which this command cannot open: see docs/spec/keystore-redis.md for the keys", p.Name)
	}
	admin, err := postgres.OpenAdmin(ctx, dsn, p.Spec.Store.Postgres.Schema)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	return &database{policy: p, keyspace: policy.Keyspace(p), admin: admin}, nil
}

// find returns the policy and the connection string.
func (t *target) find(ctx context.Context, in io.Reader) (*v1alpha1.IdempotencyPolicy, string, error) {
	if t.path != "" {
		if t.dsnFile == "" {
			return nil, "", errors.New("with --filename there is no Secret to read: --dsn-file is needed")
		}
		namespace := t.cluster.overrides.Context.Namespace
		if namespace == "" {
			namespace = "default"
		}
		p, err := (&policyFile{path: t.path, namespace: namespace}).read(in)
		if err != nil {
			return nil, "", err
		}
		dsn, err := readDSN(t.dsnFile)
		return p, dsn, err
	}
	api, namespace, err := t.cluster.connect()
	if err != nil {
		return nil, "", err
	}
	p, err := getPolicy(ctx, api, namespace, t.name)
	if err != nil {
		return nil, "", err
	}
	if t.dsnFile != "" {
		dsn, err := readDSN(t.dsnFile)
		return p, dsn, err
	}
	dsn, err := dsnOf(ctx, api, p)
	return p, dsn, err
}

// dsnOf reads the connection string of the operator's role from the policy's Secret.
func dsnOf(ctx context.Context, api client.Client, p *v1alpha1.IdempotencyPolicy) (string, error) {
	ref := policy.AdminDSN(p)
	var secret corev1.Secret
	if err := api.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: ref.Name}, &secret); err != nil {
		return "", fmt.Errorf("get secret %s/%s: %w", p.Namespace, ref.Name, err)
	}
	dsn := strings.TrimSpace(string(secret.Data[ref.Key]))
	if dsn == "" {
		return "", fmt.Errorf("secret %s/%s has no key %s", p.Namespace, ref.Name, ref.Key)
	}
	return dsn, nil
}
