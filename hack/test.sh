#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything but the cluster tests. Installs what they need: a C compiler for the race detector, a PostgreSQL server
# (each test package starts a private one), kube-apiserver and etcd (built once, cached outside the tree).
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s test: %s\n' "$(date -u +%H:%M:%S)" "$*"; }

if ! command -v gcc >/dev/null; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say "the race detector needs a C compiler: install gcc" >&2
    exit 1
  fi
  say "installing a C compiler for the race detector"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq gcc libc6-dev >/dev/null
fi

if [ -z "${KUBEBUILDER_ASSETS:-}" ]; then
  say "kube-apiserver and etcd (the first build takes about 12 minutes)"
  (cd hack && go run ./cluster build)
  KUBEBUILDER_ASSETS=$(cd hack && go run ./cluster envtest-assets)
  export KUBEBUILDER_ASSETS
fi

say "hack"
(cd hack && go test ./...)
say "product, with the race detector"
# shellcheck disable=SC2046 # one argument per package is what go test takes
POSTGRES_VERSION=${POSTGRES_VERSION:-15} go test -race -timeout 20m $(go list ./... | grep -v /test/e2e)
for version in 16 17 18; do
  say "key store and retention on PostgreSQL $version"
  POSTGRES_VERSION=$version go test -timeout 20m ./internal/keystore/postgres ./internal/retention/integration
done
