// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"io"
	"net/http"
	"strings"
	"time"
)

// impatient gives the client a time for each part of its body, not for the whole.
type impatient struct {
	io.ReadCloser
	control *http.ResponseController
	timeout time.Duration
	now     func() time.Time
}

func (b *impatient) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(b.now().Add(b.timeout)) // a writer without deadlines has its own bounds
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

// checkUpgrade refuses a request for another protocol, in which nothing could be recorded. An offer of HTTP/2 may be declined silently, and is:
// https://www.rfc-editor.org/rfc/rfc9110#section-7.8
func checkUpgrade(r *http.Request) error {
	for _, line := range r.Header["Upgrade"] {
		for protocol := range strings.SplitSeq(line, ",") {
			if protocol = strings.TrimSpace(protocol); protocol != "" && !strings.EqualFold(protocol, "h2c") {
				return errUpgrade
			}
		}
	}
	return nil
}
