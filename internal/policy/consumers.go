// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

const maxConsumers = 64

// Consumers are the windows of the consumers of p, which is valid, by their names.
func Consumers(p *v1alpha1.IdempotencyPolicy) map[string]time.Duration {
	windows := map[string]time.Duration{}
	for _, c := range p.Spec.Consumers {
		windows[c.Name], _ = c.Window.Parse() // Validate has parsed them all
	}
	return windows
}

func validateConsumers(at *field.Path, spec v1alpha1.IdempotencyPolicySpec) field.ErrorList {
	if len(spec.Consumers) > maxConsumers {
		return field.ErrorList{field.TooMany(at, len(spec.Consumers), maxConsumers)}
	}
	var errs field.ErrorList
	if len(spec.Consumers) > 0 && spec.Store.Redis != nil {
		errs = append(errs, field.Forbidden(at, "Redis has no transaction that a consumer's effect could be part of: remove it, or set store.postgres"))
	}
	names := map[string]bool{}
	for i, c := range spec.Consumers {
		for _, message := range validation.IsDNS1123Label(c.Name) {
			errs = append(errs, field.Invalid(at.Index(i).Child("name"), c.Name, message))
		}
		if names[c.Name] {
			errs = append(errs, field.Duplicate(at.Index(i).Child("name"), c.Name))
		}
		names[c.Name] = true
		errs = append(errs, validateWindow(at.Index(i).Child("window"), c.Window)...)
	}
	return errs
}
