// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/idempotency-dev/operator/api/v1alpha1"
	"github.com/idempotency-dev/operator/internal/proxyconfig"
)

// Validate reports everything that keeps p, with its defaults applied, from working: what no schema can say, such as overlapping routes, and
// once more what the schema says, for a policy that did not come through it. Each error names the field, the value and what to write instead.
func Validate(p *v1alpha1.IdempotencyPolicy) field.ErrorList {
	spec := field.NewPath("spec")
	var errs field.ErrorList
	errs = append(errs, oneOf(spec.Child("mode"), p.Spec.Mode, v1alpha1.ModeEnforce, v1alpha1.ModeAudit)...)
	errs = append(errs, validateSelector(spec.Child("selector"), p)...)
	errs = append(errs, validateTarget(spec.Child("target"), p.Spec.Target)...)
	errs = append(errs, validateStore(spec.Child("store"), p.Spec.Store)...)
	errs = append(errs, validateKeyspace(spec.Child("keyspace"), p.Spec.Keyspace)...)
	errs = append(errs, validateRetention(spec.Child("retention"), p.Spec.Retention)...)
	errs = append(errs, validateClient(spec.Child("client"), p.Spec.Client)...)
	errs = append(errs, validateRoutes(spec.Child("routes"), p.Spec)...)
	errs = append(errs, validateConsumers(spec.Child("consumers"), p.Spec)...)
	return append(errs, validateSidecar(spec.Child("sidecar"), p.Spec.Sidecar)...)
}

// ValidateMove refuses a policy whose entries were in from and would be elsewhere, unless it says by an annotation that it gives them up.
func ValidateMove(from string, p *v1alpha1.IdempotencyPolicy) field.ErrorList {
	if Entries(p) == from || p.Annotations[v1alpha1.AbandonAnnotation] == from {
		return nil
	}
	at := field.NewPath("spec", "keyspace")
	if store, _, _ := strings.Cut(from, "/"); store != strings.SplitN(Entries(p), "/", 2)[0] {
		at = field.NewPath("spec", "store")
	}
	return field.ErrorList{field.Forbidden(at, fmt.Sprintf(
		"entries recorded in %s would no longer be found in %s, and a retry would execute again: leave it, or create a new policy; or annotate this one %s=%s to give them up",
		from, Entries(p), v1alpha1.AbandonAnnotation, from))}
}

// oneOf refuses a value that is not among allowed.
func oneOf[T ~string](at *field.Path, value T, allowed ...T) field.ErrorList {
	if slices.Contains(allowed, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(at, value, allowed)}
}

func validateSelector(at *field.Path, p *v1alpha1.IdempotencyPolicy) field.ErrorList {
	selector := &p.Spec.Selector
	if len(selector.MatchLabels) == 0 && len(selector.MatchExpressions) == 0 {
		return field.ErrorList{field.Required(at, "it is empty and would select every pod of the namespace: name at least one label, such as matchLabels: {app: payments}")}
	}
	return metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, at)
}

// maxReplicas that can be asked to confirm a write.
const maxReplicas = 5

var schemaForm = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

func validateStore(at *field.Path, store v1alpha1.Store) field.ErrorList {
	errs := oneOf(at.Child("onUnavailable"), store.OnUnavailable, v1alpha1.OnUnavailableReject, v1alpha1.OnUnavailablePassThrough)
	if keys := store.EncryptionKeySecretRef; keys != nil {
		errs = append(errs, validateSecretRef(at.Child("encryptionKeySecretRef"), v1alpha1.SecretKeyRef(*keys))...)
	}
	switch {
	case store.Postgres != nil && store.Redis != nil:
		return append(errs, field.Forbidden(at.Child("redis"), "a policy has one store: set exactly one of postgres and redis"))
	case store.Postgres != nil:
		return append(errs, validatePostgres(at.Child("postgres"), *store.Postgres)...)
	case store.Redis != nil:
		return append(errs, validateRedis(at.Child("redis"), *store.Redis)...)
	default:
		return append(errs, field.Required(at.Child("postgres"), "a policy needs a store: set postgres.dsnSecretRef or redis.dsnSecretRef to the Secret with the connection string"))
	}
}

func validateRedis(at *field.Path, redis v1alpha1.RedisStore) field.ErrorList {
	errs := validateSecretRef(at.Child("dsnSecretRef"), redis.DSNSecretRef)
	if redis.AdminDSNSecretRef != nil {
		errs = append(errs, validateSecretRef(at.Child("adminDSNSecretRef"), *redis.AdminDSNSecretRef)...)
	}
	if redis.MinReplicas < 0 || redis.MinReplicas > maxReplicas {
		errs = append(errs, field.Invalid(at.Child("minReplicas"), redis.MinReplicas, "write how many replicas have to confirm a write, from 0 to 5"))
	}
	return errs
}

func validatePostgres(at *field.Path, postgres v1alpha1.PostgresStore) field.ErrorList {
	errs := validateSecretRef(at.Child("dsnSecretRef"), postgres.DSNSecretRef)
	if postgres.AdminDSNSecretRef != nil {
		errs = append(errs, validateSecretRef(at.Child("adminDSNSecretRef"), *postgres.AdminDSNSecretRef)...)
	}
	if !schemaForm.MatchString(postgres.Schema) {
		errs = append(errs, field.Invalid(at.Child("schema"), postgres.Schema, "write at most 63 lower-case letters, digits and underscores, not beginning with a digit, such as idempotency"))
	} else if strings.HasPrefix(postgres.Schema, "pg_") || postgres.Schema == "information_schema" {
		errs = append(errs, field.Invalid(at.Child("schema"), postgres.Schema, "this name belongs to PostgreSQL itself: write another, such as idempotency"))
	}
	return errs
}

func validateSecretRef(at *field.Path, ref v1alpha1.SecretKeyRef) field.ErrorList {
	var errs field.ErrorList
	for _, message := range validation.IsDNS1123Subdomain(ref.Name) {
		errs = append(errs, field.Invalid(at.Child("name"), ref.Name, "the name of a Secret is needed: "+message))
	}
	for _, message := range validation.IsConfigMapKey(ref.Key) {
		errs = append(errs, field.Invalid(at.Child("key"), ref.Key, "the name of a key in the Secret is needed: "+message))
	}
	return errs
}

var keyspaceForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

func validateKeyspace(at *field.Path, keyspace string) field.ErrorList {
	if keyspace == "" || keyspaceForm.MatchString(keyspace) {
		return nil
	}
	return field.ErrorList{field.Invalid(at, keyspace, "write at most 253 lower-case letters, digits, hyphens and dots, beginning and ending with a letter or digit, or leave it out")}
}

func validateRetention(at *field.Path, retention v1alpha1.Retention) field.ErrorList {
	errs := validateWindow(at.Child("window"), retention.Window)
	if retention.CreateAhead < 1 || retention.CreateAhead > 60 {
		errs = append(errs, field.Invalid(at.Child("createAhead"), retention.CreateAhead, "write a number of days from 1 to 60"))
	}
	return append(errs, oneOf(at.Child("deletionPolicy"), retention.DeletionPolicy, v1alpha1.DeletionRetain, v1alpha1.DeletionDelete)...)
}

func validateClient(at *field.Path, client v1alpha1.Client) field.ErrorList {
	var errs field.ErrorList
	set := 0
	for _, is := range []bool{client.Header != "", client.JWT != nil, client.Authorization != nil, client.Shared != nil} {
		if is {
			set++
		}
	}
	if set != 1 {
		errs = append(errs, field.Invalid(at, fmt.Sprintf("%d of them set", set), "set exactly one of header, jwt, authorization and shared"))
	}
	if client.Header != "" {
		errs = append(errs, validateHeader(at.Child("header"), client.Header, unfitForIdentity)...)
	} else if len(client.TrustedCIDRs) > 0 {
		errs = append(errs, field.Forbidden(at.Child("trustedCIDRs"), "it belongs to header: remove it or set header"))
	}
	if client.JWT != nil {
		errs = append(errs, validateJWT(at.Child("jwt"), *client.JWT)...)
	}
	for i, cidr := range client.TrustedCIDRs {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			errs = append(errs, field.Invalid(at.Child("trustedCIDRs").Index(i), cidr, "write an address range such as 10.0.0.0/8"))
		}
	}
	return errs
}

func validateJWT(at *field.Path, jwt v1alpha1.JWTClient) field.ErrorList {
	var errs field.ErrorList
	if jwt.Issuer == "" {
		errs = append(errs, field.Required(at.Child("issuer"), "write what tokens name in iss, such as https://issuer.example"))
	}
	if len(jwt.Audiences) == 0 {
		errs = append(errs, field.Required(at.Child("audiences"), "tokens for other services would be taken: write what tokens for this one name in aud"))
	}
	for i, audience := range jwt.Audiences {
		if audience == "" {
			errs = append(errs, field.Required(at.Child("audiences").Index(i), "write what tokens for this service name in aud"))
		}
	}
	if problem := proxyconfig.JWKSURIProblem(jwt.JWKSURI); problem != "" {
		errs = append(errs, field.Invalid(at.Child("jwksURI"), jwt.JWKSURI, problem))
	}
	if jwt.Claim == "" {
		errs = append(errs, field.Required(at.Child("claim"), "write the claim that names the caller, such as sub"))
	}
	return errs
}
