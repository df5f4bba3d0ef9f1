#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command with a cluster for it to use: the one that KUBECONFIG names, else the local one with the product's images.
# A local cluster that was down before is down again afterwards; `make cluster-up` first keeps it.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cluster() { go -C "$root/hack" run ./cluster "$@"; }

local_kubeconfig=$(cluster kubeconfig)
if [ "${KUBECONFIG:-$local_kubeconfig}" != "$local_kubeconfig" ]; then
  exec "$@"
fi
unset KUBECONFIG

down() {
  local said
  said=$(cluster down 2>&1) || printf '%s\n' "$said" >&2
}
if ! cluster status >/dev/null 2>&1; then
  trap down EXIT
fi
cluster up
cluster images

if [ "${CLUSTER:-}" = kind ] && [ -z "${E2E_HOST_ADDRESS:-}" ]; then
  # Pods of kind reach this machine at the gateway of its Docker network.
  E2E_HOST_ADDRESS=$(docker network inspect kind --format '{{range .IPAM.Config}}{{println .Gateway}}{{end}}' | grep -m1 -F .)
  export E2E_HOST_ADDRESS
fi
"$@"
