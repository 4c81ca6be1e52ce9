#!/usr/bin/env python3
"""Turns a terminal screen captured with escape codes (tmux capture-pane -e) on standard input into a page that shows it."""
import html
import re
import sys

COLOURS = {30: "#1b1f24", 31: "#ff7b72", 32: "#56d364", 33: "#e3b341", 34: "#79c0ff", 35: "#d2a8ff", 36: "#39c5cf", 37: "#d0d7de"}
FORE, BACK = "#d0d7de", "#0d1117"


def spans(line, state):
    out = []
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        code = re.fullmatch(r"\x1b\[([0-9;]*)m", part)
        if not code:
            if part:
                fore, back = state["fg"] or FORE, state["bg"] or BACK
                if state["reverse"]:
                    fore, back = back, fore
                style = f"color:{fore};background:{back};" + ("font-weight:bold;" if state["bold"] else "") + ("opacity:.6;" if state["dim"] else "")
                out.append(f'<span style="{style}">{html.escape(part)}</span>')
            continue
        for n in [int(x or 0) for x in code[1].split(";")]:
            if n == 0:
                state.update(fg=None, bg=None, bold=False, dim=False, reverse=False)
            elif n in (1, 2, 7):
                state[{1: "bold", 2: "dim", 7: "reverse"}[n]] = True
            elif n in (22, 27):
                state.update({"bold": False, "dim": False} if n == 22 else {"reverse": False})
            elif 30 <= n <= 37 or n == 39:
                state["fg"] = COLOURS.get(n)
            elif 40 <= n <= 47 or n == 49:
                state["bg"] = COLOURS.get(n - 10)
    return "".join(out)


def main():
    state = dict(fg=None, bg=None, bold=False, dim=False, reverse=False)
    rows = [spans(line, state) for line in sys.stdin.read().rstrip("\n").split("\n")]
    print(f'<!doctype html><meta charset="utf-8"><body style="margin:0;background:{BACK}"><pre style="margin:12px;font:15px/1.25 \'DejaVu Sans Mono\',monospace;'
          f'color:{FORE}">' + "\n".join(rows) + "</pre>")


main()
