#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Reads manifests, writes them with the development images replaced by those given: set-images.sh MANAGER PROXY.
set -euo pipefail
if [ $# -ne 2 ]; then
  echo "usage: set-images.sh MANAGER_IMAGE PROXY_IMAGE" >&2
  exit 2
fi
sed -e "s|docker.io/local/idempotency-manager:dev|$1|g" -e "s|docker.io/local/idempotency-proxy:dev|$2|g"
