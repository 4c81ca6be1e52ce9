#!/usr/bin/env python3
"""Runs the benchmarks one after another and writes BUILD/bench.json: a list of
{"name","value","unit","floor","ratio","peer","peer_ratio","goal","met"}, all of one run.

ratio compares with a floor measured in the same run (what the hardware or a bare copy does), peer_ratio with the peer on the same weights (--peer).
The peer is llama.cpp, as the npm package @node-llama-cpp/linux-x64 carries it; it is fetched into BUILD/peer."""
import argparse
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PEER_PACKAGE, PEER_VERSION = "@node-llama-cpp/linux-x64", "3.22.1"
# Prefix of a name, the field judged, the least value that meets the goal.
GOALS = [("decode/", "peer_ratio", 1.0), ("prefill/", "peer_ratio", 1.0), ("attention/", "ratio", 0.6), ("kernels/", "ratio", 0.6), ("tier/", "ratio", 0.6), ("http/", "ratio", 0.5),
         ("select/quest/depth", "ratio", 0.6), ("select/clusterkv/depth", "ratio", 0.6), ("select/quest/speedup", "value", 2), ("select/clusterkv/speedup", "value", 2),
         ("select/shadow/share", "ratio", 1)]


def random_models(build):
    """The 135M shape with random weights, once: speed depends on the shape alone."""
    folder = os.path.join(build, "models")
    os.makedirs(folder, exist_ok=True)
    for kind in ("q8_0", "f16"):
        out = os.path.join(folder, f"135m-{kind}.gguf")
        if not os.path.exists(out):
            subprocess.run([sys.executable, os.path.join(ROOT, "tools", "random_model.py"), "--shape", "135m", "--type", kind, "--out", out + ".new"], check=True, timeout=600)
            os.rename(out + ".new", out)


def models(build):
    """(label, file, depths): the small model, and whatever lies in BUILD/models as NAME-TYPE.gguf (135m-q8_0.gguf)."""
    for kind in ("q8_0", "f16"):
        yield f"demo/{kind}", os.path.join(ROOT, "models", f"kvasir-demo-{kind}.gguf"), ["0", "2048"]
    folder = os.path.join(build, "models")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if name.endswith(".gguf"):
            yield name[:-5].replace("-", "/", 1), os.path.join(folder, name), ["0", "4096"]


def jobs(build):
    """(program, arguments) of every benchmark but the peer's."""
    for name in sorted(os.listdir(os.path.join(ROOT, "bench"))):
        stem, kind = os.path.splitext(name)
        program = os.path.join(build, "bench", stem)
        if kind != ".c" or stem in ("peer", "random_model"):
            continue
        if stem == "decode":
            for label, model, depths in models(build):
                yield program, [model, "--name", label] + [x for d in depths for x in ("--depth", d)]
        else:
            yield program, []


def figures(program, arguments):
    p = subprocess.run([program, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=900)
    rows = [json.loads(line) for line in p.stdout.splitlines() if line.startswith("{")]
    if p.returncode != 0 or not rows:
        raise RuntimeError(f"{program}: exit status {p.returncode}: {p.stderr.strip()[-500:]}")
    return rows


def fetch_peer(build):
    """Folder of the peer's shared libraries."""
    folder = os.path.join(build, "peer")
    package = os.path.join(folder, "node_modules", *PEER_PACKAGE.split("/"))
    if not os.path.isdir(package):
        os.makedirs(folder, exist_ok=True)
        subprocess.run(["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", f"{PEER_PACKAGE}@{PEER_VERSION}"], check=True, timeout=600)
    for at, _, files in os.walk(package):
        if any(f.startswith("libllama.") and ".so" in f for f in files):
            return at
    raise RuntimeError(f"{PEER_PACKAGE} holds no libllama")


def peer_figures(build):
    libraries, threads = fetch_peer(build), str(min(os.cpu_count() or 1, 8))
    for label, model, depths in models(build):
        yield from figures(os.path.join(build, "bench", "peer"), [libraries, model, threads, label, *depths])


def judge(row):
    row.setdefault("floor", None), row.setdefault("ratio", None), row.setdefault("peer", None)
    faster_is_more = not row["unit"].endswith("us") and row["unit"] not in ("ms", "s")
    row["peer_ratio"] = None
    if row["peer"] and row.get("value"):
        row["peer_ratio"] = row["value"] / row["peer"] if faster_is_more else row["peer"] / row["value"]
    row["goal"], row["met"] = None, None
    for prefix, field, least in GOALS:
        if row["name"].startswith(prefix) and row[field] is not None:
            row["goal"], row["met"] = f"{field} >= {least}", row[field] >= least
    return row


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--build", default="build")
    p.add_argument("--peer", action="store_true", help="measure the peer in the same run")
    a = p.parse_args()
    build, rows, broken = os.path.join(ROOT, a.build), {}, 0
    random_models(build)
    for program, arguments in jobs(build):
        try:
            for row in figures(program, arguments):
                rows[row["name"]] = row
        except (OSError, RuntimeError, ValueError, subprocess.TimeoutExpired) as e:
            print(f"FAIL {os.path.basename(program)}: {e}", file=sys.stderr)
            broken += 1
    if a.peer:
        for row in peer_figures(build):
            rows.setdefault(row["name"], {"name": row["name"], "value": None, "unit": row["unit"]})["peer"] = row["peer"]
    result = [judge(row) for row in rows.values()]
    with open(os.path.join(build, "bench.json"), "w") as f:
        json.dump(result, f, indent=1)
    for row in result:
        show = lambda v: "-" if v is None else f"{v:.3g}" if isinstance(v, float) else str(v)
        print(f"{row['name']:44} {show(row['value']):>10} {row['unit']:<12} floor {show(row['floor']):>9}  ratio {show(row['ratio']):>6}  peer {show(row['peer']):>8}  "
              f"{show(row['peer_ratio']):>6}  {'' if row['met'] is None else 'met' if row['met'] else 'missed'}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
