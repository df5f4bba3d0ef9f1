# SPDX-License-Identifier: Apache-2.0
##@ Measure

.PHONY: bench
bench: bench-keystore bench-retention ## Every benchmark.

.PHONY: bench-keystore
bench-keystore: ## The key store against the textbook, on a private PostgreSQL.
	$(GO) run ./bench/keystore

.PHONY: bench-retention
bench-retention: ## Retiring a day of entries against deleting it, and a thousand keyspaces.
	$(GO) run ./bench/retention
