// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"time"
)

// slowest is how many bytes a second a client has to send in the long run: one byte now and then must not hold a place for ever.
const slowest = 8 << 10

// impatient ends a body that comes too slowly: the client has a time for its beginning, and a second more for every slowest bytes.
type impatient struct {
	io.ReadCloser
	control  *http.ResponseController
	deadline time.Time
}

func (b *impatient) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(b.deadline) // a writer without deadlines has its own bounds
	n, err := b.ReadCloser.Read(p)
	b.deadline = b.deadline.Add(time.Duration(n) * time.Second / slowest)
	if errors.Is(err, io.EOF) {
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
