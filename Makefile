# SPDX-License-Identifier: Apache-2.0
# Targets that kubebuilder users know, and the local cluster. `make help` lists them.

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Image that docker-build makes and deploy uses, for the manager; PROXY_IMG for the sidecar.
IMG ?= docker.io/local/idempotency-manager:dev
PROXY_IMG ?= docker.io/local/idempotency-proxy:dev
# Platforms of docker-buildx.
PLATFORMS ?= linux/amd64,linux/arm64
VERSION ?= dev

GO ?= go
GO_LDFLAGS := -s -w -X main.version=$(VERSION)
CONTROLLER_GEN := $(GO) tool controller-gen
GOLANGCI_LINT := $(GO) tool -modfile=hack/lint/go.mod golangci-lint
# The cluster's own kubectl where it is built, else the one on the PATH.
KUBECTL = $(or $(shell $(GO) -C hack run ./cluster kubectl 2>/dev/null || command -v kubectl),$(error there is no kubectl: install it, or let make cluster-up build it))
CRD := idempotencypolicies.idempotency.dev

# verify regenerates, then looks.
.NOTPARALLEL:

##@ Use it

.PHONY: help
help: ## Show this list.
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-zA-Z0-9_-]+:.*##/ {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: try
try: ## One payment, sent three times, executed once: no cluster, under a minute once compiled.
	$(GO) run ./cmd/kubectl-idempotency local -f config/samples/payments.yaml --demo

.PHONY: demo
demo: ## The same on a real Kubernetes node, end to end, with what happens printed.
	hack/with-cluster.sh $(GO) test ./test/e2e -count=1 -timeout 30m -v -run '^TestDemo$$'

##@ Develop

.PHONY: manifests
manifests: ## Generate the CRD and RBAC from the markers in the code.
	$(CONTROLLER_GEN) crd paths=./api/... output:crd:dir=config/crd/bases
	$(CONTROLLER_GEN) rbac:roleName=idempotency-operator paths=./internal/... paths=./cmd/... output:rbac:dir=config/rbac

.PHONY: generate
generate: ## Generate the deepcopy methods.
	$(CONTROLLER_GEN) object:headerFile=hack/boilerplate.go.txt paths=./api/...

.PHONY: fmt
fmt: ## Format the code.
	gofmt -w $$(git ls-files '*.go')

.PHONY: vet
vet: ## Run go vet.
	$(GO) vet ./...

.PHONY: lint
lint: ## Run golangci-lint.
	$(GOLANGCI_LINT) run --allow-parallel-runners ./...
	cd hack && $(GO) tool -modfile=lint/go.mod golangci-lint run --allow-parallel-runners --config ../.golangci.yml ./...

.PHONY: tidy
tidy: ## Tidy the product's module and that of hack.
	$(GO) mod tidy
	cd hack && $(GO) mod tidy

.PHONY: test
test: ## Everything but the cluster tests; installs and starts what it needs.
	hack/test.sh

.PHONY: e2e
e2e: ## The cluster tests, on the local cluster or on whatever KUBECONFIG names.
	hack/with-cluster.sh $(GO) test ./test/e2e -count=1 -timeout 40m -v

.PHONY: verify
verify: manifests generate fmt tidy vet lint ## Regenerate, format, tidy, lint; fail when that changed anything.
	@git diff --exit-code && test -z "$$(git ls-files --others --exclude-standard api config)" || { echo "verify: the tree changed: commit what 'make manifests generate fmt tidy' wrote" >&2; exit 1; }

##@ Build

.PHONY: build
build: ## Build the three binaries into bin/.
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "$(GO_LDFLAGS)" -o bin/ ./cmd/...

.PHONY: docker-build
docker-build: ## Build the images of manager and sidecar with Docker.
	docker build --target manager -t $(IMG) .
	docker build --target proxy -t $(PROXY_IMG) .

.PHONY: docker-push
docker-push: ## Push both images.
	docker push $(IMG)
	docker push $(PROXY_IMG)

.PHONY: docker-buildx
docker-buildx: ## Build and push both images for every platform.
	docker buildx build --platform $(PLATFORMS) --target manager -t $(IMG) --push .
	docker buildx build --platform $(PLATFORMS) --target proxy -t $(PROXY_IMG) --push .

.PHONY: build-installer
build-installer: ## Write dist/install.yaml: CRD, RBAC, webhooks and manager in one file, with IMG and PROXY_IMG.
	mkdir -p dist
	$(KUBECTL) kustomize config/default | hack/set-images.sh "$(IMG)" "$(PROXY_IMG)" > dist/install.yaml.new
	mv dist/install.yaml.new dist/install.yaml

##@ Deploy, to the cluster that KUBECONFIG names

.PHONY: install
install: ## Install the CRD.
	$(KUBECTL) apply --server-side -f config/crd/bases

.PHONY: uninstall
uninstall: ## Remove the CRD, and every policy with it.
	$(KUBECTL) delete --ignore-not-found -f config/crd/bases

.PHONY: deploy
deploy: ## Install everything. A CRD that is still being deleted is waited for.
	@if [ -n "$$($(KUBECTL) get crd $(CRD) --ignore-not-found -o jsonpath='{.metadata.deletionTimestamp}')" ]; then \
		$(KUBECTL) wait --for=delete crd/$(CRD) --timeout=60s; \
	fi
	$(KUBECTL) kustomize config/default | hack/set-images.sh "$(IMG)" "$(PROXY_IMG)" | $(KUBECTL) apply --server-side -f -

.PHONY: undeploy
undeploy: ## Remove every policy, while the manager is there to clean up behind them, then everything else.
	@if [ -n "$$($(KUBECTL) get crd $(CRD) --ignore-not-found -o name)" ]; then \
		$(KUBECTL) delete clusteridempotencypolicies --all --timeout=120s; \
		$(KUBECTL) delete idempotencypolicies --all --all-namespaces --timeout=120s; \
	fi
	$(KUBECTL) delete --ignore-not-found -k config/default

include hack/cluster/cluster.mk
-include bench/bench.mk
