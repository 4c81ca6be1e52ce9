#!/usr/bin/env bash
# Fetches the CUDA compiler, runtime and headers from the Python index into build/cuda, where the Makefile finds nvcc.
set -euo pipefail
build=${1:-build}
[ -x "$build/cuda/bin/nvcc" ] && exit 0
command -v g++ >/dev/null || { echo "nvcc needs g++, which is missing: install it (Debian: apt-get install g++)" >&2; exit 1; }
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv" # Debian's own pip refuses to install outside one
"$tmp/venv/bin/pip" install -q --disable-pip-version-check --no-deps --target "$tmp/wheels" \
  'nvidia-cuda-nvcc==13.*' 'nvidia-cuda-runtime==13.*' 'nvidia-cuda-crt==13.*' 'nvidia-cuda-cccl==13.*' 'nvidia-nvvm==13.*'
root=$(dirname "$(dirname "$(find "$tmp/wheels" -path '*/bin/nvcc' -type f | head -1)")")
[ "$root" != . ] || { echo "the packages hold no nvcc" >&2; exit 1; }
mkdir -p "$build"; rm -rf "$build/cuda"; cp -r "$root" "$build/cuda"
chmod +x "$build"/cuda/bin/* "$build"/cuda/nvvm/bin/* 2>/dev/null || true
"$build/cuda/bin/nvcc" --version | tail -2
