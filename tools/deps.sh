#!/usr/bin/env bash
# Installs the Debian packages that are missing, by name. Root is asked for only when something is.
set -euo pipefail
build=${1:-build}
packages="gcc make pkg-config libc6-dev libmicrohttpd-dev libjansson-dev liblua5.4-dev libsqlite3-dev libgnutls28-dev
libcurl4-gnutls-dev zlib1g-dev libxxhash-dev libncurses-dev check tmux curl openssl python3 python3-venv"
command -v npm >/dev/null || packages="$packages nodejs npm"
command -v chromium >/dev/null || packages="$packages chromium fonts-dejavu-core"
command -v systemd-analyze >/dev/null || packages="$packages systemd" # it checks the unit that ships
command -v clang >/dev/null || packages="$packages clang" # the second compiler of the numerics test
missing=
for p in $packages; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || {
    # a command that is there by other means is as good as its package
    case $p in gcc|make|curl|openssl|tmux|python3) command -v "$p" >/dev/null && continue ;; python3-venv) python3 -c 'import venv, ensurepip' 2>/dev/null && continue ;; esac
    missing="$missing $p"
  }
done
if [ -n "$missing" ]; then
  echo "installing:$missing"
  sudo=
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "these packages are missing and installing them needs root:$missing" >&2; exit 1; }
    sudo=sudo
  fi
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
mkdir -p "$build"
touch "$build/.deps-ok"
