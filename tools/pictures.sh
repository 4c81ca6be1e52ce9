#!/usr/bin/env bash
# Remakes the README's pictures: starts the main job on a free port, waits for a canary, and takes both consoles as they are.
set -euo pipefail
build=${1:-build}
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=http://127.0.0.1:$port
tmp=$(mktemp -d)
session=kvasir-pictures-$$
"$build/kvasird" --demo --listen "127.0.0.1:$port" --state "$tmp/state" >"$tmp/log" 2>&1 &
daemon=$!
finish() { kill "$daemon" 2>/dev/null || true; wait "$daemon" 2>/dev/null || true; tmux kill-session -t "$session" 2>/dev/null || true; rm -rf "$tmp"; }
trap finish EXIT
until curl -fs "$url/readyz" >/dev/null 2>&1; do kill -0 "$daemon"; sleep 0.2; done
for _ in $(seq 1200); do
  curl -fs "$url/api/v1/status" | tr -d '\n ' | grep -qE '"stage":"(CANARY|RAMP)"[^}]*"pipeline":"quest"|"pipeline":"quest"[^}]*"stage":"(CANARY|RAMP)"' && break
  sleep 0.2
done
LC_ALL=C.UTF-8 tmux -u new-session -d -s "$session" -x 120 -y 34 "env TERM=xterm-256color LC_ALL=C.UTF-8 $build/kvasir --url $url console"
sleep 6
mkdir -p docs/pictures
tmux capture-pane -e -N -p -t "$session" | python3 tools/screen_html.py >"$tmp/console.html"
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1120,670 --screenshot="$tmp/console.png" "file://$tmp/console.html" >/dev/null 2>&1
node tests/web/picture.mjs "$url/" "$tmp/web.png"
cp "$tmp/console.png" "$tmp/web.png" docs/pictures/
ls -l docs/pictures
