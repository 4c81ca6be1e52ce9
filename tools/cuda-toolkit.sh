#!/usr/bin/env bash
# Fetches the CUDA compiler, runtime and headers from the Python index into build/cuda, where the Makefile finds nvcc.
set -euo pipefail
build=${1:-build}
[ -x "$build/cuda/bin/nvcc" ] && exit 0
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
python3 -m pip install -q --disable-pip-version-check --no-deps --target "$tmp" \
  'nvidia-cuda-nvcc==13.*' 'nvidia-cuda-runtime==13.*' 'nvidia-cuda-crt==13.*' 'nvidia-cuda-cccl==13.*' 'nvidia-nvvm==13.*'
root=$(dirname "$(dirname "$(find "$tmp" -path '*/bin/nvcc' -type f | head -1)")")
[ -n "$root" ] || { echo "the packages hold no nvcc" >&2; exit 1; }
mkdir -p "$build"; rm -rf "$build/cuda"; cp -r "$root" "$build/cuda"
chmod +x "$build"/cuda/bin/* "$build"/cuda/nvvm/bin/* 2>/dev/null || true
"$build/cuda/bin/nvcc" --version | tail -2
