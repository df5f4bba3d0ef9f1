# SPDX-License-Identifier: Apache-2.0
##@ Measure

.PHONY: bench
bench: bench-keystore ## Every benchmark.

.PHONY: bench-keystore
bench-keystore: ## The key store against the textbook, on a private PostgreSQL.
	$(GO) run ./bench/keystore
