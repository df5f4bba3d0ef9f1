# SPDX-License-Identifier: Apache-2.0
# The local cluster. CLUSTER=kind uses kind and Docker instead of the one that hack/cluster builds.

##@ Local cluster

.PHONY: cluster-up
cluster-up: ## Start a Kubernetes node on this machine (the first time builds it: about 15 minutes).
	@$(GO) -C hack run ./cluster up

.PHONY: cluster-down
cluster-down: ## Stop it and remove everything it made, except the cached binaries.
	@$(GO) -C hack run ./cluster down

.PHONY: cluster-status
cluster-status: ## Print its components and node; fails when it is not ready.
	@$(GO) -C hack run ./cluster status

.PHONY: images
images: ## Build the product's images and load them into it.
	@$(GO) -C hack run ./cluster images
