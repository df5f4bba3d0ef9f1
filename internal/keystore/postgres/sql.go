// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-dev/operator/internal/keystore"
)

//go:embed functions/*.sql
var functions embed.FS

//go:embed queries/*.sql
var queries embed.FS

// States of a row.
const (
	reserved  = 1
	completed = 2
	unknown   = 3
)

// settings of every function that decides. The search path is pinned because the functions run with their owner's rights; no wait for a lock is
// long; and the plan's shape is pinned: one index look-up in each partition, planned once, whatever the statistics of a new partition say.
const settings = `
SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s'
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off`

// settingsMany are those of functions on many entries: each entry is looked up by itself.
const settingsMany = settings + ` SET enable_hashjoin = off SET enable_mergejoin = off`

// granted lists the functions of a keyspace that a sidecar calls, with their arguments. Their names end in _<action>.
func granted() map[string]string {
	return map[string]string{
		"reserve":       "text, text, bytea, uuid, uuid, interval, interval, text, boolean, boolean, integer",
		"complete":      "text, text, uuid, text, integer, bytea, bytea, boolean",
		"release":       "text, text, uuid, boolean",
		"mark_unknown":  "text, text, uuid, boolean",
		"check":         "",
		"reserve_many":  "text[], text[], bytea[], uuid[], uuid, interval, interval[], text[]",
		"complete_many": "text[], text[], uuid[], text[], integer[], bytea[], bytea[]",
	}
}

// withheld lists the functions of a keyspace that only the operator's role calls, or functions that have its rights.
func withheld() map[string]string {
	return map[string]string{
		"settle": "text, text, uuid, boolean, text, integer, bytea, bytea",
		"record": "text, text, uuid, integer, bytea, bytea",
	}
}

// delivering lists the functions of a consumers' keyspace, which functions with the operator's rights call.
func delivering() map[string]string { return map[string]string{"deliver": "text, text"} }

// shared lists the functions for all keyspaces that a sidecar calls.
func shared() map[string]string {
	return map[string]string{"keep_alive": "uuid, interval", "retire": "uuid"}
}

// template fills the places in SQL that cannot be parameters: quoted names, and constants.
type template struct{ *strings.Replacer }

// inSchema is the template of what belongs to no keyspace.
func inSchema(schema string) template {
	return template{strings.NewReplacer("{{schema}}", quote(schema))}
}

// inKeyspace is the template of what belongs to one keyspace.
func inKeyspace(schema, keyspace string) template {
	relation := Relation(keyspace)
	lock := func(client, key string) string {
		return fmt.Sprintf("hashtextextended(%s, hashtextextended(%s, hashtextextended('%s', 0)))", key, client, relation)
	}
	honoured := strings.NewReplacer("{{schema}}", quote(schema)).Replace(
		"(t.expires_at > now_at OR t.state = 1 AND EXISTS (SELECT FROM {{schema}}.holders h WHERE h.holder = t.holder AND h.expires_at > now_at))")
	pairs := []string{
		"{{schema}}", quote(schema),
		"{{parent}}", quote(relation),
		"{{relation}}", relation,
		"{{keyspace}}", strings.ReplaceAll(keyspace, "'", "''"),
		"{{settings}}", settings,
		"{{settings_many}}", settingsMany,
		"{{lock}}", lock("p_client", "p_key"),
		"{{lock_many}}", lock("q.client", "q.key"),
		"{{own}}", "t.client = p_client AND t.key = p_key AND t.token = p_token",
		"{{honoured}}", honoured,
		"{{reserved}}", strconv.Itoa(reserved),
		"{{completed}}", strconv.Itoa(completed),
		"{{unknown}}", strconv.Itoa(unknown),
		"{{New}}", strconv.Itoa(int(keystore.New)),
		"{{TakenOver}}", strconv.Itoa(int(keystore.TakenOver)),
		"{{Mismatch}}", strconv.Itoa(int(keystore.Mismatch)),
		"{{Completed}}", strconv.Itoa(int(keystore.Completed)),
		"{{InFlight}}", strconv.Itoa(int(keystore.InFlight)),
		"{{Unknown}}", strconv.Itoa(int(keystore.Unknown)),
	}
	for _, names := range []map[string]string{granted(), withheld(), delivering()} {
		for name := range names {
			pairs = append(pairs, "{{"+name+"}}", quote(relation+"_"+name))
		}
	}
	return template{strings.NewReplacer(pairs...)}
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// function is the DDL of the file functions/<name>.sql.
func (t template) function(name string) string {
	return t.Replace(read(functions, "functions/"+name+".sql"))
}

// query is the statement of the file queries/<name>.sql.
func (t template) query(name string) string { return t.Replace(read(queries, "queries/"+name+".sql")) }

func read(files embed.FS, path string) string {
	text, err := files.ReadFile(path)
	if err != nil {
		panic(err) // a name that is not embedded: every one is used by a test
	}
	return string(text)
}
