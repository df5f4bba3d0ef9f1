// SPDX-License-Identifier: Apache-2.0

package inject

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// redirect renders the init container that makes the rule. It is root, since a process of another user is given no capability by a container
// runtime, and has none but the one that it needs.
func redirect(s Sidecar, t Traffic) corev1.Container {
	return corev1.Container{
		Name:                     RedirectName,
		Image:                    s.Image,
		ImagePullPolicy:          s.PullPolicy,
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		Args: []string{
			"redirect",
			text("--app=", t.App),
			text("--sidecar=", t.Sidecar),
			text("--probes=", t.Moved.Probes),
		},
		Resources: *s.Resources.DeepCopy(),
		SecurityContext: &corev1.SecurityContext{
			RunAsNonRoot:             ptr.To(false),
			RunAsUser:                ptr.To[int64](0),
			RunAsGroup:               ptr.To[int64](0),
			AllowPrivilegeEscalation: ptr.To(false),
			ReadOnlyRootFilesystem:   ptr.To(true),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}},
			SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
}
