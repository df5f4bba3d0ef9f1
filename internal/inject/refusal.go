// SPDX-License-Identifier: Apache-2.0

package inject

import "fmt"

// Reason names why a pod cannot carry the sidecar. It is the reason of an event and the value of a metric label.
type Reason string

const (
	// HostNetwork: the pod shares the node's ports, so that neither the port's name nor its number belongs to the pod alone.
	HostNetwork Reason = "HostNetwork"
	// Windows: the sidecar is a Linux program.
	Windows Reason = "Windows"
	// PortNotFound: no container of the pod declares the port that the policy names.
	PortNotFound Reason = "PortNotFound"
	// PortAmbiguous: several containers declare it, and a Service would reach the first of them around the sidecar.
	PortAmbiguous Reason = "PortAmbiguous"
	// PortUnnamed: NamedPort takes a name over, and the policy gives a number.
	PortUnnamed Reason = "PortUnnamed"
	// PortProtocol: the port is declared, but not for TCP.
	PortProtocol Reason = "PortProtocol"
	// PortTaken: the pod uses a port name that the sidecar needs for itself, or has no port number left.
	PortTaken Reason = "PortTaken"
	// HostPort: the node forwards a port of its own to the app's port, around the sidecar.
	HostPort Reason = "HostPort"
	// PortPrivileged: PortEnv would let the sidecar listen on a port that needs privileges.
	PortPrivileged Reason = "PortPrivileged"
	// EnvUnusable: the variable of PortEnv has a value that cannot be changed into another port.
	EnvUnusable Reason = "EnvUnusable"
	// PodSecurity: Redirect needs a capability that the namespace forbids.
	PodSecurity Reason = "PodSecurity"
	// MeshRedirects: Redirect would take from a service mesh what is encrypted for it.
	MeshRedirects Reason = "MeshRedirects"
	// ContainerTaken: the pod has a container of the sidecar's name that is not ours.
	ContainerTaken Reason = "ContainerTaken"
	// VolumeTaken: the pod has a volume of the sidecar's that is not ours.
	VolumeTaken Reason = "VolumeTaken"
	// PolicyInvalid: the policy asks for a container that the API server would refuse, and the pod with it.
	PolicyInvalid Reason = "PolicyInvalid"
)

// RefusalError is the error of a pod that cannot carry the sidecar. The pod is as it was.
type RefusalError struct {
	Reason Reason
	// Message says what is in the way, where, and how to mend it.
	Message string
}

// Error returns the message.
func (r *RefusalError) Error() string { return r.Message }

func refuse(reason Reason, format string, args ...any) *RefusalError {
	return &RefusalError{Reason: reason, Message: fmt.Sprintf(format, args...)}
}
