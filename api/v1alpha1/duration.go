// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Duration is a length of time such as "90s", "1h30m" or "30d": whole numbers with the units d (24 hours), h, m, s and ms, in that order.
type Duration string

var durationForm = regexp.MustCompile(`^([0-9]{1,7}d)?([0-9]{1,7}h)?([0-9]{1,7}m)?([0-9]{1,7}s)?([0-9]{1,7}ms)?$`)

// Parse returns the length of time. An empty Duration is zero.
// It fails on another form than the documented one; the largest value of that form fits a time.Duration.
func (d Duration) Parse() (time.Duration, error) {
	if d == "" {
		return 0, nil
	}
	if !durationForm.MatchString(string(d)) {
		return 0, fmt.Errorf("%q is not a duration: write whole numbers with the units d, h, m, s or ms, such as 24h or 30d", string(d))
	}
	rest, days := string(d), time.Duration(0)
	if number, after, found := strings.Cut(rest, "d"); found {
		n, err := strconv.Atoi(number)
		if err != nil {
			return 0, fmt.Errorf("parse days of %q: %w", string(d), err)
		}
		if n > 36600 {
			return 0, fmt.Errorf("%q is longer than 36600d", string(d))
		}
		days, rest = time.Duration(n)*24*time.Hour, after
	}
	if rest == "" {
		return days, nil
	}
	parsed, err := time.ParseDuration(rest)
	if err != nil {
		return 0, fmt.Errorf("parse %q: %w", string(d), err)
	}
	if parsed > 36600*24*time.Hour {
		return 0, fmt.Errorf("%q is longer than 36600d", string(d))
	}
	return days + parsed, nil
}
