// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// encrypt gives the sidecar the keys that it encrypts answers with, where the policy names some.
func encrypt(s Sidecar, c *corev1.Container) {
	if s.KeysSecretName == "" {
		return
	}
	c.Args = append(c.Args, "--encryption-key-file="+keysDir+"/"+keysFile)
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: keysVolume, MountPath: keysDir, ReadOnly: true})
}

// keys is the volume with them, or none.
func keys(s Sidecar) []corev1.Volume {
	if s.KeysSecretName == "" {
		return nil
	}
	return []corev1.Volume{{Name: keysVolume, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
		SecretName:  s.KeysSecretName,
		Items:       []corev1.KeyToPath{{Key: s.KeysSecretKey, Path: keysFile}},
		DefaultMode: ptr.To[int32](0o444),
	}}}}
}

// unmountKeys takes away the volume of an older sidecar that had keys, where this one has none.
func unmountKeys(s Sidecar, pod *corev1.Pod) {
	if s.KeysSecretName == "" {
		pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == keysVolume })
	}
}
