// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"log/slog"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/keystore"
	"github.com/idempotency-dev/operator/internal/keystore/postgres"
	"github.com/idempotency-dev/operator/internal/policy"
)

// store owns the condition StoreHealthy, and prepares the database: schema, keyspace, and the right of the sidecar's role to use it.
func (r *Policies) store(ctx context.Context, p *pass) {
	if !p.usable() {
		p.set(v1alpha1.ConditionStoreHealthy, metav1.ConditionUnknown, v1alpha1.ReasonNotAccepted, "The store is looked at once the policy is valid and its Secrets exist.")
		return
	}
	prepare := r.prepareStore
	if p.policy.Spec.Store.Redis != nil {
		prepare = r.prepareRedis
	}
	status, err := prepare(ctx, p)
	if errors.Is(err, keystore.ErrKeyspaceTaken) {
		p.keyspaceTaken()
		err = nil
	} else if err == nil {
		p.keyspaceOurs()
	}
	if status.Version != "" {
		p.status.Store = &status
	}
	if err == nil {
		p.set(v1alpha1.ConditionStoreHealthy, metav1.ConditionTrue, v1alpha1.ReasonHealthy, "The store answers and keeps what it acknowledges.")
		p.lookAgain(probeHealthy)
		return
	}
	trouble := troubleOf(err)
	level := slog.LevelWarn
	if before := p.condition(v1alpha1.ConditionStoreHealthy); before != nil && before.Reason == trouble.reason {
		level = slog.LevelDebug // it has been said
	}
	slog.Log(ctx, level, "store is not healthy", "namespace", p.policy.Namespace, "policy", p.policy.Name, "reason", trouble.reason, "error", err)
	p.set(v1alpha1.ConditionStoreHealthy, metav1.ConditionFalse, trouble.reason, trouble.say(err))
	p.lookAgain(probeUnhealthy)
}

func (r *Policies) prepareStore(ctx context.Context, p *pass) (v1alpha1.StoreStatus, error) {
	health, err := r.preparePostgres(ctx, p)
	return v1alpha1.StoreStatus{Type: "Postgres", Version: health.Version, SchemaVersion: health.SchemaVersion}, err
}

func (r *Policies) preparePostgres(ctx context.Context, p *pass) (keystore.Health, error) {
	role, err := postgres.UserOf(p.dsn)
	if err != nil {
		return keystore.Health{}, &sidecarError{err}
	}
	s, err := r.Stores.of(ctx, p.policy, p.adminDSN)
	if err != nil {
		return keystore.Health{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	health, err := s.probe(ctx, r.Clock)
	if err != nil {
		return health, err
	}
	keyspace := policy.Keyspace(p.policy)
	if err := s.prepare(ctx, preparation{keyspace: keyspace, claim: r.claim(p.policy), role: role}, policy.Consumers(p.policy)); err != nil {
		return health, err
	}
	p.declared()
	if partitions := p.status.Partitions; partitions == nil || partitions.Count == 0 {
		return health, nil // a sidecar could do nothing yet; the maintenance of partitions comes next, and back here
	}
	config := postgres.Config{DSN: p.dsn, Schema: p.policy.Spec.Store.Postgres.Schema, Keyspace: keyspace, MaxConns: 1}
	if err := s.try(ctx, r.Clock, config); err != nil {
		return health, &sidecarError{err}
	}
	return health, nil
}

// sidecarError is what the store says to the sidecar's role.
type sidecarError struct{ error }

func (e *sidecarError) Unwrap() error { return e.error }

// claim is what a policy writes beside a keyspace that it alone may use. A keyspace that is named in the policy is shared on purpose.
func (r *Policies) claim(p *v1alpha1.IdempotencyPolicy) string {
	if p.Spec.Keyspace != "" {
		return ""
	}
	return r.ClusterID + "/" + p.Namespace + "/" + p.Name
}

// trouble is what an error of the store means to a person. Its message never changes from probe to probe, and holds no part of a DSN.
type trouble struct {
	cause   error
	reason  string
	message string
	// detailed: what the error says is stable, and says which setting, privilege or version it is.
	detailed bool
}

func troubles() []trouble {
	return []trouble{
		{cause: keystore.ErrDSNInvalid, reason: v1alpha1.ReasonDSNInvalid, message: "A connection string cannot be parsed: write it as postgres://user:password@host:5432/database?sslmode=verify-full, or redis://user:password@host:6379, into the Secret."},
		{cause: keystore.ErrAuthFailed, reason: v1alpha1.ReasonAuthFailed, message: "The server refuses the user or the password: correct the Secret or the role."},
		{cause: keystore.ErrTLSFailed, reason: v1alpha1.ReasonTLSFailed, message: "TLS with the server failed: check sslmode and sslrootcert in the connection string, and the server's certificate."},
		{cause: keystore.ErrReadOnly, reason: v1alpha1.ReasonReadOnly, message: "The server is a standby or read-only: connect to the primary."},
		{cause: keystore.ErrNotDurable, reason: v1alpha1.ReasonNotDurable, message: "The server may lose what it has acknowledged, and a retry would then execute again", detailed: true},
		{cause: keystore.ErrSchemaOutdated, reason: v1alpha1.ReasonSchemaOutdated, message: "Tables and functions do not fit this version of the operator", detailed: true},
		{cause: keystore.ErrPermissionDenied, reason: v1alpha1.ReasonPermissionDenied, message: "A role lacks a privilege", detailed: true},
		{cause: keystore.ErrClockSkew, reason: v1alpha1.ReasonClockSkew, message: "The clocks of the operator and of the server differ by more than 10 seconds: set them by NTP."},
		{cause: keystore.ErrDataLost, reason: v1alpha1.ReasonDataLost, message: "Redis has lost entries, and what is lost is not executed again", detailed: true},
		{cause: keystore.ErrClusterDegraded, reason: v1alpha1.ReasonClusterDegraded, message: "Redis cannot keep all that it should", detailed: true},
		{cause: keystore.ErrEvictionPossible, reason: v1alpha1.ReasonEvictionPossible, message: "Redis removes entries when its memory is full, and a retry would then execute again: set maxmemory-policy to noeviction."},
		{cause: keystore.ErrPersistenceOff, reason: v1alpha1.ReasonPersistenceOff, message: "Redis forgets every entry when it ends, and a retry would then execute again: set appendonly to yes."},
		{cause: keystore.ErrUnreachable, reason: v1alpha1.ReasonUnreachable, message: "The server does not answer: check its address, that it runs, and what lies between."},
		{cause: context.DeadlineExceeded, reason: v1alpha1.ReasonUnreachable, message: "The server does not answer: check its address, that it runs, and what lies between."},
	}
}

func troubleOf(err error) trouble {
	for _, t := range troubles() {
		if errors.Is(err, t.cause) {
			return t
		}
	}
	return trouble{reason: v1alpha1.ReasonProbeFailed, message: "The server gave an answer that the operator does not know: the manager's log says which."}
}

func (t trouble) say(err error) string {
	message := t.message
	if t.detailed {
		message += ": " + err.Error()
	}
	var sidecar *sidecarError
	if errors.As(err, &sidecar) {
		return "With the connection string of the sidecar: " + message
	}
	return message
}
