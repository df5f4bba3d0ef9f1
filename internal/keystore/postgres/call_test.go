// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"errors"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestJudge(t *testing.T) {
	pg := func(severity, code string) error { return &pgconn.PgError{Severity: severity, Code: code} }
	for _, row := range []struct {
		reason           string
		err              error
		again, uncertain bool
	}{
		{"the connection broke, before the commit or after", io.ErrUnexpectedEOF, true, true},
		{"the server stops", pg("FATAL", "57P01"), true, true},
		{"the server has closed an idle connection", pg("FATAL", "57P05"), true, true},
		{"PgBouncer has lost its connection to the server, or closes ours", pg("FATAL", "08P01"), true, true},
		{"the severity may be translated", &pgconn.PgError{Severity: "ВАЖНО", SeverityUnlocalized: "FATAL", Code: "57P01"}, true, true},
		{"there is no server to connect to: its hosts were tried", &pgconn.ConnectError{}, false, false},
		{"a deadlock has undone it", pg("ERROR", "40P01"), true, false},
		{"statement_timeout has undone it, and would again", pg("ERROR", "57014"), false, false},
		{"a bad call stays one", pg("ERROR", "22021"), false, false},
	} {
		again, uncertain := (&Store{}).judge(errors.Join(row.err))
		if again != row.again || uncertain != row.uncertain {
			t.Errorf("%s: again %t, uncertain %t, want %t, %t", row.reason, again, uncertain, row.again, row.uncertain)
		}
	}
}
