// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// consumersSuffix ends the name of a consumers' keyspace. No policy can name one so.
const consumersSuffix = "/consumers"

// ConsumersOf is the name of the keyspace that holds the deliveries to the consumers of keyspace. Retention treats it as any other.
func ConsumersOf(keyspace string) string { return keyspace + consumersSuffix }

func ofConsumers(keyspace string) bool { return strings.HasSuffix(keyspace, consumersSuffix) }

// makings of a keyspace: the file of its table, and its functions with their arguments.
func makings(keyspace string) (table string, functions map[string]string) {
	if ofConsumers(keyspace) {
		return "deliveries", delivering()
	}
	functions = granted()
	maps.Copy(functions, withheld())
	return "table", functions
}

// EnsureConsumers makes the keyspace of deliveries beside keyspace, unless it exists, and declares consumers, by name, with how long each of their
// deliveries is remembered. A window that is changed holds for deliveries to come. A consumer that is not named any more stays declared: what
// it has taken is remembered as it was promised.
// It fails with keystore.ErrKeyspaceTaken as EnsureKeyspace does.
func (a *Admin) EnsureConsumers(ctx context.Context, keyspace, claim string, consumers map[string]time.Duration) error {
	name := ConsumersOf(keyspace)
	if err := a.EnsureKeyspace(ctx, name, claim); err != nil {
		return err
	}
	for _, consumer := range slices.Sorted(maps.Keys(consumers)) {
		err := pgx.BeginTxFunc(ctx, a.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, a.tmpl.query("consumer_declare"), name, consumer, consumers[consumer])
			return err
		})
		if err != nil {
			return a.wrap(ctx, fmt.Sprintf("declare consumer %s of keyspace %s", consumer, keyspace), err)
		}
	}
	return nil
}
