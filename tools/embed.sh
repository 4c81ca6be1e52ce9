#!/usr/bin/env bash
# Prints an assembler file that embeds every file of a folder (as web/NAME) and the files named after it (as their paths).
set -euo pipefail
web=$1; shift
n=0; names=()
echo '    .section .rodata'
emit() { # path, name
  echo "    .balign 16"; echo "f$n: .incbin \"$1\""; echo "    .byte 0"; echo "n$n: .asciz \"$2\""
  names+=("$n $(stat -c %s "$1")"); n=$((n + 1))
}
while IFS= read -r f; do emit "$web/$f" "web/$f"; done < <(cd "$web" && find . -type f ! -name '.*' -printf '%P\n' | LC_ALL=C sort)
for f in "$@"; do emit "$f" "$f"; done
echo '    .section .data.rel.ro,"aw"'; echo '    .balign 8'; echo '    .globl kv_embedded_table'; echo 'kv_embedded_table:'
for e in "${names[@]}"; do set -- $e; echo "    .quad n$1, f$1, $2"; done
echo '    .quad 0, 0, 0'
echo '    .section .note.GNU-stack,"",%progbits'
