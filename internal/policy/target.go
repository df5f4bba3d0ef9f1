// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"regexp"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

var variableForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

func validateTarget(at *field.Path, target v1alpha1.Target) field.ErrorList {
	errs := oneOf(at.Child("interception"), target.Interception,
		v1alpha1.InterceptNamedPort, v1alpha1.InterceptPortEnv, v1alpha1.InterceptRedirect, v1alpha1.InterceptNone)
	errs = append(errs, oneOf(at.Child("scheme"), target.Scheme, v1alpha1.SchemeHTTP, v1alpha1.SchemeH2C, v1alpha1.SchemeHTTPS)...)
	port := at.Child("port")
	switch {
	case target.Port.Type == intstr.String:
		for _, message := range validation.IsValidPortName(target.Port.StrVal) {
			errs = append(errs, field.Invalid(port, target.Port.StrVal, "the name of a container port is needed: "+message))
		}
	case target.Interception == v1alpha1.InterceptNamedPort:
		errs = append(errs, field.Invalid(port, target.Port.IntVal, "NamedPort takes over the name that Services target, and a number has none: give the container port a name and write it here, or set interception: PortEnv, Redirect or None"))
	default:
		for _, message := range validation.IsValidPortNum(int(target.Port.IntVal)) {
			errs = append(errs, field.Invalid(port, target.Port.IntVal, message))
		}
	}
	env := at.Child("portEnv")
	switch {
	case target.Interception == v1alpha1.InterceptPortEnv && target.PortEnv == "":
		errs = append(errs, field.Required(env, "PortEnv moves the app by an environment variable: write the name of the one that the app takes its port from, such as PORT"))
	case target.Interception == v1alpha1.InterceptPortEnv && !variableForm.MatchString(target.PortEnv):
		errs = append(errs, field.Invalid(env, target.PortEnv, "write the name of an environment variable: letters, digits and underscores, not beginning with a digit, such as PORT"))
	case target.Interception != v1alpha1.InterceptPortEnv && target.PortEnv != "":
		errs = append(errs, field.Forbidden(env, "it belongs to interception: PortEnv: remove it or set that"))
	}
	return errs
}
