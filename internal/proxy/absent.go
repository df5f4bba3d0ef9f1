// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"time"

	"github.com/idempotency-dev/operator/internal/keystore"
)

// absentStore is there while no connection string is usable.
type absentStore struct{}

func (absentStore) Reserve(context.Context, keystore.Reservation) (keystore.Decision, error) {
	return keystore.Decision{}, keystore.ErrUnavailable
}

func (absentStore) Complete(context.Context, keystore.Ownership, keystore.Answer) error {
	return keystore.ErrUnavailable
}

func (absentStore) Release(context.Context, keystore.Ownership) error { return keystore.ErrUnavailable }
func (absentStore) MarkUnknown(context.Context, keystore.Ownership) error {
	return keystore.ErrUnavailable
}
func (absentStore) Check(context.Context) error                   { return keystore.ErrUnavailable }
func (absentStore) Retire(context.Context, keystore.Holder) error { return nil }
func (absentStore) Close()                                        {}

func (absentStore) KeepAlive(context.Context, keystore.Holder, time.Duration) error {
	return keystore.ErrUnavailable
}
