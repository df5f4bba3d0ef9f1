// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

// Default sets, in place, what the schema's defaults set at admission, for policies that never met an API server. Applying it twice changes nothing more.
func Default(p *v1alpha1.IdempotencyPolicy) {
	spec := &p.Spec
	setDefault(&spec.Mode, v1alpha1.ModeEnforce)
	setDefault(&spec.Target.Interception, v1alpha1.InterceptNamedPort)
	setDefault(&spec.Target.Scheme, v1alpha1.SchemeHTTP)
	setDefault(&spec.Store.OnUnavailable, v1alpha1.OnUnavailableReject)
	if postgres := spec.Store.Postgres; postgres != nil {
		setDefault(&postgres.Schema, "idempotency")
		setDefault(&postgres.DSNSecretRef.Key, "dsn")
		if postgres.AdminDSNSecretRef != nil {
			setDefault(&postgres.AdminDSNSecretRef.Key, "dsn")
		}
	}
	if keys := spec.Store.EncryptionKeySecretRef; keys != nil {
		setDefault(&keys.Key, "keys")
	}
	if jwt := spec.Client.JWT; jwt != nil {
		setDefault(&jwt.Claim, "sub")
	}
	if redis := spec.Store.Redis; redis != nil {
		setDefault(&redis.DSNSecretRef.Key, "dsn")
		if redis.AdminDSNSecretRef != nil {
			setDefault(&redis.AdminDSNSecretRef.Key, "dsn")
		}
	}
	setDefault(&spec.Retention.Window, "24h")
	setDefault(&spec.Retention.CreateAhead, 7)
	setDefault(&spec.Retention.DeletionPolicy, v1alpha1.DeletionRetain)
	setDefault(&spec.Sidecar.LogLevel, "info")
	setDefault(&spec.Rollout.Strategy, v1alpha1.RolloutNone)
	for i := range spec.Routes {
		defaultRoute(&spec.Routes[i])
	}
}

func defaultRoute(r *v1alpha1.Route) {
	if r.Key.Required == nil {
		r.Key.Required = new(true)
	}
	setDefault(&r.Key.Source, v1alpha1.KeySource{Header: "Idempotency-Key"})
	setDefault(&r.Key.MaxLength, 255)
	if r.Fingerprint.CanonicalJSON == nil {
		r.Fingerprint.CanonicalJSON = new(true)
	}
	setDefault(&r.InFlight.Mode, v1alpha1.InFlightReject)
	setDefault(&r.InFlight.MaxWait, "2s")
	setDefault(&r.OnUnknownOutcome, v1alpha1.UnknownBlock)
	setDefault(&r.Responses.Store, v1alpha1.ResponseFull)
	// A quantity that was written as "0" remembers its text and so differs from one that was not written.
	setDefault(&r.Responses.MaxBytes, resource.MustParse("1Mi"))
	setDefault(&r.Timeout, "30s")
}

// setDefault sets *field to value when it holds its zero value.
func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
