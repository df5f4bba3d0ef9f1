// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

const (
	// ContainerName is the name of the injected container.
	ContainerName = "idempotency-proxy"
	// RedirectName is the name of the init container that Redirect adds.
	RedirectName = "idempotency-redirect"
	// PortName is the name of the sidecar's port where it does not take the app's over.
	PortName = "idempotency"
	// AdminPortName is the name of the port with health and metrics.
	AdminPortName = "idem-admin"

	// PodSecurityLabel on a namespace is the level of the Pod Security Standards that the API server enforces in it.
	PodSecurityLabel = "pod-security.kubernetes.io/enforce"

	configVolume = "idempotency-config"
	dsnVolume    = "idempotency-dsn"
	keysVolume   = "idempotency-keys"
	spoolVolume  = "idempotency-spool"

	configDir = "/etc/idempotency/config"
	dsnDir    = "/etc/idempotency/dsn"
	keysDir   = "/etc/idempotency/keys"
	spoolDir  = "/var/lib/idempotency"

	configKey = "config.json"
	dsnFile   = "dsn"
	keysFile  = "keys"

	listenPort = 15600
	adminPort  = 15601
	// substitutePort is where PortEnv moves the app, and where Redirect lets probes in.
	substitutePort = 15602

	// imageUser is the user of the image, written out because the kubelet cannot otherwise prove it numeric,
	// and because the pod's own runAsUser would replace it.
	imageUser = 65532
)

// container renders the sidecar. It has no liveness probe, since a restart leaves requests in flight with an unknown outcome,
// and no preStop hook, since the kubelet stops it only after the app and the program drains by itself.
func container(s Sidecar, t Traffic) corev1.Container {
	c := corev1.Container{
		Name:                     ContainerName,
		Image:                    s.Image,
		ImagePullPolicy:          s.PullPolicy,
		RestartPolicy:            ptr.To(corev1.ContainerRestartPolicyAlways),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		Args: []string{
			"--config=" + configDir + "/" + configKey,
			"--dsn-file=" + dsnDir + "/" + dsnFile,
			text(upstreamFlag(s.Scheme), t.App),
			text(listenFlag, t.Sidecar),
			text(adminFlag, t.Admin),
			"--spool=" + spoolDir,
			"--log-level=" + s.LogLevel,
		},
		Env: environment(s.Resources),
		Ports: []corev1.ContainerPort{
			{Name: t.Name, ContainerPort: t.Sidecar, Protocol: corev1.ProtocolTCP},
			{Name: AdminPortName, ContainerPort: t.Admin, Protocol: corev1.ProtocolTCP},
		},
		StartupProbe:   ready(t.Admin, 1, 60),
		ReadinessProbe: ready(t.Admin, 5, 3),
		Resources:      *s.Resources.DeepCopy(),
		SecurityContext: &corev1.SecurityContext{
			RunAsNonRoot:             ptr.To(true),
			RunAsUser:                ptr.To[int64](imageUser),
			RunAsGroup:               ptr.To[int64](imageUser),
			AllowPrivilegeEscalation: ptr.To(false),
			ReadOnlyRootFilesystem:   ptr.To(true),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: configVolume, MountPath: configDir, ReadOnly: true},
			{Name: dsnVolume, MountPath: dsnDir, ReadOnly: true},
			{Name: spoolVolume, MountPath: spoolDir},
		},
	}
	encrypt(s, &c)
	trace(s, &c)
	return c
}

// environment tells the Go runtime of the memory limit, with a tenth left for what it does not manage, so that it collects garbage in time
// instead of being killed: https://go.dev/doc/gc-guide#Memory_limit
func environment(r corev1.ResourceRequirements) []corev1.EnvVar {
	limit, limited := r.Limits[corev1.ResourceMemory]
	if !limited || limit.Value() == 0 {
		return nil
	}
	return []corev1.EnvVar{{Name: "GOMEMLIMIT", Value: strconv.FormatInt(limit.Value()/10*9, 10)}}
}

// Owned reports whether the element of that name, of the pod's list "initContainers" or "volumes", is the sidecar's.
func Owned(list, name string) bool {
	switch list {
	case "initContainers":
		return name == ContainerName || name == RedirectName
	case "volumes":
		return name == configVolume || name == dsnVolume || name == keysVolume || name == spoolVolume
	default:
		return false
	}
}

func ready(port, period, failures int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:     corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/readyz", Port: intstr.FromInt32(port)}},
		PeriodSeconds:    period,
		TimeoutSeconds:   3,
		FailureThreshold: failures,
	}
}

// volumes mounts whole directories, never a subPath, which would not follow a change of the ConfigMap or the Secret. The spool has room
// for more than the program allows itself (--spill-bytes and --journal-bytes): at its limit the kubelet would evict the pod.
func volumes(s Sidecar) []corev1.Volume {
	return append([]corev1.Volume{
		{Name: configVolume, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: s.ConfigMap},
			Items:                []corev1.KeyToPath{{Key: configKey, Path: configKey}},
		}}},
		{Name: dsnVolume, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName:  s.SecretName,
			Items:       []corev1.KeyToPath{{Key: s.SecretKey, Path: dsnFile}},
			DefaultMode: ptr.To[int32](0o444),
		}}},
		{Name: spoolVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			SizeLimit: ptr.To(resource.MustParse("1Gi")),
		}}},
	}, keys(s)...)
}
