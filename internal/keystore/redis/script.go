// SPDX-License-Identifier: Apache-2.0

package redis

import (
	"crypto/sha1" //nolint:gosec // the name that Redis gives a script
	"embed"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
)

//go:embed scripts/*.lua
var files embed.FS

const (
	// declare is what a script returns instead of an outcome when it has to be told of the lease of a holder, whose name follows.
	declare = 0
	// epochTime is how long a keyspace that nobody uses is remembered: longer than any of its entries.
	epochTime = 500 * 24 * time.Hour
)

// script is a Lua script and the name that a server knows it by.
type script struct{ text, sha string }

// newScript puts a script together from its preludes and its own file.
func newScript(names ...string) script {
	text := fmt.Sprintf("local DECLARE, NEW, TAKEN_OVER, MISMATCH, COMPLETED, IN_FLIGHT, UNKNOWN = %d, %d, %d, %d, %d, %d, %d\nlocal EPOCH_TIME = %d\n",
		declare, keystore.New, keystore.TakenOver, keystore.Mismatch, keystore.Completed, keystore.InFlight, keystore.Unknown, epochTime.Microseconds())
	for _, name := range append([]string{"prelude"}, names...) {
		content, err := files.ReadFile("scripts/" + name + ".lua")
		if err != nil {
			panic(err) // a name that is not embedded: every one is used by a test
		}
		text += string(content)
	}
	sum := sha1.Sum([]byte(text)) //nolint:gosec // see the import
	return script{text: text, sha: hex.EncodeToString(sum[:])}
}

// scripts are what a Store calls.
type scripts struct{ reserve, complete, release, markUnknown, keepAlive, retire, check script }

func newScripts() scripts {
	return scripts{
		reserve:     newScript("epoch", "reserve"),
		complete:    newScript("complete"),
		release:     newScript("release"),
		markUnknown: newScript("mark_unknown"),
		keepAlive:   newScript("keep_alive"),
		retire:      newScript("retire"),
		check:       newScript("epoch", "check"),
	}
}
