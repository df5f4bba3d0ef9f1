// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/idempotency-dev/operator/api/v1alpha1"
)

// shifted is a clock that is wrong by a fixed amount.
type shifted struct {
	clock.Clock
	by time.Duration
}

func (s shifted) Now() time.Time { return s.Clock.Now().Add(s.by) }

// TestStoreHealthy makes a real server show each thing that can be wrong with it, and then mends it.
func TestStoreHealthy(t *testing.T) {
	tests := []struct {
		reason  string
		spoil   func(w *world)
		mend    func(w *world)
		says    string
		clock   clock.Clock
		because string
	}{
		{
			reason:  v1alpha1.ReasonUnreachable,
			spoil:   func(w *world) { w.secret("db", map[string]string{"admin-dsn": "postgres://u:hunter2@127.0.0.1:1/db"}) },
			mend:    func(w *world) { w.secret("db", map[string]string{"admin-dsn": w.admin}) },
			because: "nobody listens there",
		},
		{
			reason:  v1alpha1.ReasonAuthFailed,
			spoil:   func(w *world) { w.exec("ALTER ROLE " + w.adminRole + " PASSWORD 'another'") },
			mend:    func(w *world) { w.exec("ALTER ROLE " + w.adminRole + " PASSWORD 'secret-of-" + w.adminRole + "'") },
			because: "the password was changed on the server only",
		},
		{
			reason: v1alpha1.ReasonAuthFailed,
			spoil:  func(w *world) { w.secret("db", map[string]string{"dsn": w.dsn("nobody_" + w.namespace)}) },
			mend:   func(w *world) { w.secret("db", map[string]string{"dsn": w.sidecar}) },

			because: "the sidecar's role does not exist",
		},
		{
			reason: v1alpha1.ReasonTLSFailed,
			spoil: func(w *world) {
				w.secret("db", map[string]string{"admin-dsn": strings.ReplaceAll(w.admin, "sslmode=disable", "sslmode=require")})
			},
			mend:    func(w *world) { w.secret("db", map[string]string{"admin-dsn": w.admin}) },
			because: "the server has no TLS",
		},
		{
			reason: v1alpha1.ReasonDSNInvalid,
			spoil: func(w *world) {
				w.secret("db", map[string]string{"admin-dsn": "postgres://u:hunter2@127.0.0.1:port/db"})
			},
			mend:    func(w *world) { w.secret("db", map[string]string{"admin-dsn": w.admin}) },
			because: "the operator's connection string has no port number",
		},
		{
			reason:  v1alpha1.ReasonDSNInvalid,
			spoil:   func(w *world) { w.secret("db", map[string]string{"dsn": "host=127.0.0.1 port='hunter2"}) },
			mend:    func(w *world) { w.secret("db", map[string]string{"dsn": w.sidecar}) },
			because: "the sidecar's connection string has an open quote",
		},
		{
			reason: v1alpha1.ReasonReadOnly,
			spoil: func(w *world) {
				w.exec("ALTER DATABASE " + w.databaseName() + " SET default_transaction_read_only = on")
			},
			mend: func(w *world) {
				w.exec("BEGIN READ WRITE; ALTER DATABASE " + w.databaseName() + " RESET default_transaction_read_only; COMMIT")
			},
			because: "transactions are read-only by default",
		},
		{
			reason:  v1alpha1.ReasonNotDurable,
			spoil:   func(w *world) { w.exec("ALTER DATABASE " + w.databaseName() + " SET synchronous_commit = off") },
			mend:    func(w *world) { w.exec("ALTER DATABASE " + w.databaseName() + " RESET synchronous_commit") },
			says:    "synchronous_commit is off",
			because: "a crash would lose acknowledged commits",
		},
		{
			reason: v1alpha1.ReasonSchemaOutdated,
			spoil: func(w *world) {
				w.exec("CREATE SCHEMA idempotency; CREATE TABLE idempotency.migrations (version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now()); CREATE TABLE idempotency.keyspaces (name text, version integer); INSERT INTO idempotency.migrations VALUES (9999); ALTER TABLE idempotency.keyspaces OWNER TO " + w.adminRole + "; ALTER TABLE idempotency.migrations OWNER TO " + w.adminRole + "; ALTER SCHEMA idempotency OWNER TO " + w.adminRole)
			},
			mend:    func(w *world) { w.exec("DROP SCHEMA idempotency CASCADE") },
			says:    "version 9999",
			because: "a newer operator was here",
		},
		{
			reason:  v1alpha1.ReasonPermissionDenied,
			spoil:   func(w *world) { w.exec("REVOKE CREATE ON DATABASE " + w.databaseName() + " FROM " + w.adminRole) },
			mend:    func(w *world) { w.exec("GRANT CREATE ON DATABASE " + w.databaseName() + " TO " + w.adminRole) },
			says:    "needs CREATE",
			because: "the operator's role may not make the schema",
		},
		{
			reason:  v1alpha1.ReasonClockSkew,
			clock:   shifted{clock.RealClock{}, 11 * time.Second},
			because: "the operator's clock is ahead",
		},
	}
	for _, tt := range tests {
		t.Run(tt.reason+": "+tt.because, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, tt.clock)
			if tt.spoil != nil {
				tt.spoil(w)
			}
			w.policy("payments", nil)
			message := w.await("payments", v1alpha1.ConditionStoreHealthy, metav1.ConditionFalse, tt.reason)
			if !strings.Contains(message, tt.says) {
				t.Errorf("the message %q does not say %q", message, tt.says)
			}
			if strings.Contains(message, "hunter2") || strings.Contains(message, "127.0.0.1") || strings.Contains(message, w.adminRole) {
				t.Errorf("the message %q holds a part of the connection string", message)
			}
			w.await("payments", v1alpha1.ConditionReady, metav1.ConditionFalse, tt.reason)
			if tt.mend != nil {
				tt.mend(w)
				w.await("payments", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
			}
		})
	}
}

// TestSidecarsWayIn runs the maintenance of partitions, too: without partitions a sidecar could do nothing.
func TestSidecarsWayIn(t *testing.T) {
	t.Parallel()
	w := newWholeWorld(t)
	w.ready("payments", nil)
	w.await("payments", v1alpha1.ConditionPartitionsReady, metav1.ConditionTrue, v1alpha1.ReasonMaintained)
	p, err := w.get("payments")
	if err != nil {
		t.Fatal(err)
	}
	if have := p.Status.Partitions; have == nil || have.Count != 8 || have.RunwayUntil == nil || have.Oldest >= have.Newest {
		t.Errorf("the status shows partitions %+v, not today's and seven more", have)
	}
	if have := p.Status.Store; have == nil || have.Type != "Postgres" || have.Version == "" || have.SchemaVersion == 0 {
		t.Errorf("the status shows store %+v", have)
	}
	w.exec("ALTER ROLE " + w.sidecarRole + " PASSWORD 'another'")
	w.stores.expire()
	w.nudge("payments")
	message := w.await("payments", v1alpha1.ConditionStoreHealthy, metav1.ConditionFalse, v1alpha1.ReasonAuthFailed)
	if !strings.Contains(message, "of the sidecar") {
		t.Errorf("the message %q does not say whose connection string it is", message)
	}
	w.exec("ALTER ROLE " + w.sidecarRole + " PASSWORD 'secret-of-" + w.sidecarRole + "'")
	w.await("payments", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}
