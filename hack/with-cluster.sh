#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command with a cluster for it to use: the one that KUBECONFIG names, else the local one with the product's images.
# A local cluster that was down before is down again afterwards; `make cluster-up` first keeps it.
set -euo pipefail

if [ -n "${KUBECONFIG:-}" ]; then
  exec "$@"
fi

root=$(cd "$(dirname "$0")/.." && pwd)
cluster() { go -C "$root/hack" run ./cluster "$@"; }

if ! cluster status >/dev/null 2>&1; then
  trap 'cluster down' EXIT
fi
cluster up
cluster images
"$@"
