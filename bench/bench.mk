# SPDX-License-Identifier: Apache-2.0
##@ Measure

.PHONY: bench
bench: bench-controller bench-injection bench-keystore bench-retention bench-proxy bench-redis ## Every benchmark.

.PHONY: bench-controller
bench-controller: ## The manager with 5,000 policies and 10,000 pods, on a private API server and PostgreSQL: about 25 minutes.
	KUBEBUILDER_ASSETS="$${KUBEBUILDER_ASSETS:-$$(cd hack && go run ./cluster build >&2 && go run ./cluster envtest-assets)}" $(GO) run ./bench/controller

.PHONY: bench-keystore
bench-keystore: ## The key store against the textbook, on a private PostgreSQL.
	$(GO) run ./bench/keystore

.PHONY: soak-consumers
soak-consumers: ## 100,000 messages from NATS and RabbitMQ, a fifth of them twice, to consumers that are killed: each effect once.
	$(GO) test ./test/consumers -count=1 -timeout 30m -v -run '^TestLoad$$' -messages 100000

.PHONY: bench-retention
bench-retention: ## Retiring a day of entries against deleting it, and a thousand keyspaces.
	$(GO) run ./bench/retention

.PHONY: bench-proxy
bench-proxy: ## The sidecar against the textbook proxy, gofiber's middleware, ReverseProxy and nginx, on a private PostgreSQL.
	@command -v nginx >/dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq nginx-light && systemctl disable --now nginx 2>/dev/null || true; }
	$(GO) run ./bench/proxy

.PHONY: bench-redis
bench-redis: ## The key store on Redis against PostgreSQL and gofiber's storage, and on clusters, on private servers.
	$(GO) run ./bench/redis

.PHONY: bench-injection
bench-injection: ## The injection webhook with 5,000 policies and 100 pods a second, on a private API server: about a minute.
	KUBEBUILDER_ASSETS="$${KUBEBUILDER_ASSETS:-$$(cd hack && go run ./cluster build >&2 && go run ./cluster envtest-assets)}" $(GO) run ./bench/injection
