// SPDX-License-Identifier: Apache-2.0

package proxyconfig

import (
	"crypto/sha256"
	"encoding/hex"
)

// RunningPath is where a sidecar's admin port says, as a Running in JSON, which configuration the process uses.
const RunningPath = "/config"

// Running says which configuration a sidecar uses. Whoever can reach the port can read it: it holds nothing of the configuration itself.
type Running struct {
	// Revision of the document that requests meet from now on.
	Revision string `json:"revision"`
	// Refused is the revision of the document in the file when that is not usable, and Revision therefore the last good one.
	Refused string `json:"refused,omitempty"`
}

// Revision names a document by its bytes: 16 hexadecimal digits. Documents with different bytes have different revisions.
func Revision(document []byte) string {
	sum := sha256.Sum256(document)
	return hex.EncodeToString(sum[:8])
}
