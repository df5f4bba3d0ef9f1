// SPDX-License-Identifier: Apache-2.0

// Package redirect leads what comes to a pod's port from outside to the sidecar, by rules in the pod's own network.
package redirect

import "fmt"

// Ports of a pod, all different, from 1 to 65535.
type Ports struct {
	// App is where the app listens. What comes to it from outside is led to Sidecar.
	App, Sidecar int
	// Probes leads to App: the kubelet's probes come from outside as well, and are for the app.
	Probes int
}

// Validate refuses ports that no rules can be made of.
func (p Ports) Validate() error {
	for _, port := range []struct {
		name   string
		number int
	}{{"app", p.App}, {"sidecar", p.Sidecar}, {"probes", p.Probes}} {
		if port.number < 1 || port.number > 65535 {
			return fmt.Errorf("check port %s: %d is not between 1 and 65535", port.name, port.number)
		}
	}
	if p.App == p.Sidecar || p.App == p.Probes || p.Sidecar == p.Probes {
		return fmt.Errorf("check ports: %d, %d and %d are not three different ones", p.App, p.Sidecar, p.Probes)
	}
	return nil
}
