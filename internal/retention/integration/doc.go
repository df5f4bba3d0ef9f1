// SPDX-License-Identifier: Apache-2.0

// Package integration holds the tests of retention on a real PostgreSQL server: crashes, conflicts and two managers at once.
package integration
