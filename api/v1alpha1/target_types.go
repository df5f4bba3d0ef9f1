// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "k8s.io/apimachinery/pkg/util/intstr"

// Interception is how traffic comes to the sidecar instead of the app.
// +kubebuilder:validation:Enum=NamedPort;PortEnv;Redirect;None
type Interception string

const (
	// InterceptNamedPort gives the sidecar the port name that Services target; the app's port is renamed and probes follow the app.
	InterceptNamedPort Interception = "NamedPort"
	// InterceptPortEnv gives the sidecar the port number; an environment variable moves the app to a free one and probes follow it.
	InterceptPortEnv Interception = "PortEnv"
	// InterceptRedirect leaves the app where it is; a rule in the pod's network leads what comes from outside to the sidecar.
	InterceptRedirect Interception = "Redirect"
	// InterceptNone leaves the app's ports alone; the user points the Service at the sidecar's port.
	InterceptNone Interception = "None"
)

// Target is a port of the app.
// +kubebuilder:validation:XValidation:rule="self.interception != 'NamedPort' || type(self.port) == string",message="NamedPort takes over a port by its name: write the name of the container port, such as port: http, or set interception: PortEnv, Redirect or None"
// +kubebuilder:validation:XValidation:rule="(self.interception == 'PortEnv') == has(self.portEnv)",message="portEnv is the environment variable by which PortEnv moves the app: write its name, such as portEnv: PORT, with interception: PortEnv, and leave it out with any other"
type Target struct {
	// port is the name or the number of the app's container port. NamedPort needs a name.
	// +kubebuilder:validation:XIntOrString
	Port intstr.IntOrString `json:"port"`

	// interception is how traffic comes to the sidecar: NamedPort takes the port's name over, so that Services that target the name reach the sidecar; PortEnv takes the number over and moves the app by the environment variable portEnv; Redirect adds an init container with the capability NET_ADMIN, which leads the port's traffic to the sidecar; None leaves that to you.
	// +kubebuilder:default=NamedPort
	// +optional
	Interception Interception `json:"interception,omitempty"`

	// portEnv is, with PortEnv, the environment variable from which the app takes the port that it listens on.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]*$`
	// +optional
	PortEnv string `json:"portEnv,omitempty"`

	// scheme is what the app speaks: HTTP (HTTP/1.1), H2C (HTTP/2 without TLS, such as gRPC), or HTTPS. The sidecar itself takes HTTP/1.1 and HTTP/2 without TLS in any case.
	// With HTTPS the app's certificate is not verified, since the connection does not leave the pod.
	// +kubebuilder:default=HTTP
	// +optional
	Scheme Scheme `json:"scheme,omitempty"`
}

// Scheme is what an app speaks.
// +kubebuilder:validation:Enum=HTTP;H2C;HTTPS
type Scheme string

const (
	// SchemeHTTP is HTTP/1.1.
	SchemeHTTP Scheme = "HTTP"
	// SchemeH2C is HTTP/2 without TLS.
	SchemeH2C Scheme = "H2C"
	// SchemeHTTPS is HTTP/1.1 with TLS.
	SchemeHTTPS Scheme = "HTTPS"
)
