#!/usr/bin/env python3
"""Writes runtime/model/unicode_table.h from Python's unicodedata: where the class of code points changes.

Usage: tools/unicode_tables.py > runtime/model/unicode_table.h
"""
import sys
import unicodedata

SPACES = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
OTHER, LETTER, NUMBER, SPACE, PUNCTUATION = range(5)


def class_of(cp):
    if cp in SPACES:
        return SPACE
    return {"L": LETTER, "N": NUMBER, "P": PUNCTUATION}.get(unicodedata.category(chr(cp))[0], OTHER)


def main():
    rows, last = [], None
    for cp in range(0x110000):
        c = class_of(cp)
        if c != last:
            rows.append(cp << 3 | c)
            last = c
    out = sys.stdout.write
    out("/* unicode_table.h — made by tools/unicode_tables.py; do not edit. Unicode %s: first code point << 3 | class. */\n"
        % unicodedata.unidata_version)
    out("static const uint32_t class_starts[%d] = {\n" % len(rows))
    for i in range(0, len(rows), 16):
        out("    " + " ".join("0x%x," % r for r in rows[i:i + 16]) + "\n")
    out("};\n")


if __name__ == "__main__":
    main()
