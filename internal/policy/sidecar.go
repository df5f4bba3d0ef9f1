// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

// validateSidecar refuses a container that an API server would refuse: every pod that the policy selects would then fail to be created.
func validateSidecar(at *field.Path, sidecar v1alpha1.Sidecar) field.ErrorList {
	errs := oneOf(at.Child("logLevel"), sidecar.LogLevel, "debug", "info", "warn", "error")
	if image := sidecar.Image; len(image) > 512 || strings.ContainsFunc(image, func(r rune) bool { return r <= ' ' || r > '~' }) {
		errs = append(errs, field.Invalid(at.Child("image"), image, "write an image such as registry.example/idempotency-proxy:v1, or leave it out"))
	}
	at = at.Child("resources")
	resources := sidecar.Resources
	if len(resources.Claims) > 0 {
		errs = append(errs, field.Forbidden(at.Child("claims"), "the sidecar uses no claimed resources: remove it"))
	}
	errs = append(errs, validateResources(at.Child("limits"), resources.Limits)...)
	errs = append(errs, validateResources(at.Child("requests"), resources.Requests)...)
	for _, name := range slices.Sorted(maps.Keys(resources.Requests)) {
		request := resources.Requests[name]
		if limit, limited := resources.Limits[name]; limited && request.Cmp(limit) > 0 {
			errs = append(errs, field.Invalid(at.Child("requests").Key(string(name)), request.String(), "it is more than the limit, "+limit.String()))
		}
	}
	return errs
}

func validateResources(at *field.Path, list corev1.ResourceList) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(list)) {
		errs = append(errs, oneOf(at.Key(string(name)), name, corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage)...)
		if quantity := list[name]; quantity.Sign() < 0 {
			errs = append(errs, field.Invalid(at.Key(string(name)), quantity.String(), "it is negative"))
		}
	}
	return errs
}
