#!/usr/bin/env python3
"""Runs the benchmarks one after another and writes BUILD/bench.json: a list of
{"name","value","unit","floor","ratio","peer","peer_ratio","goal","met"}, all of one run.

ratio compares with a floor measured in the same run (what the hardware or a bare copy does), peer_ratio with the peer on the same weights (--peer).
The peer is llama.cpp, as the npm package @node-llama-cpp/linux-x64 carries it; it is fetched into BUILD/peer."""
import argparse
import fnmatch
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PEER_PACKAGE, PEER_VERSION = "@node-llama-cpp/linux-x64", "3.22.1"
# A pattern of names, the fields judged, the least values that meet the goal. Every pattern that matches counts.
GOALS = [("decode/*/depth-0", {"ratio": 0.75, "peer_ratio": 1.1}), ("decode/*/depth-4096", {"ratio": 0.8, "peer_ratio": 1.8}),
         ("decode/*/depth-16384", {"ratio": 0.8, "peer_ratio": 2.4}), ("decode/*/depth-32768", {"ratio": 0.8, "peer_ratio": 3}),
         ("prefill/*/q8_0/512", {"peer_ratio": 2}), ("prefill/*/f16/512", {"peer_ratio": 1}), ("speedup/*/batch-8", {"value": 3}),
         ("attention/32k/*", {"ratio": 0.85}), ("tier/promote/*", {"ratio": 0.8}), ("tier/demote/*", {"ratio": 0.8}), ("tier/stage/*", {"ratio": 0.9}), ("tier/disk/*x*", {"ratio": 0.8}),
         ("tier/directory/lookup-lease", {"value": 2e6}), ("restore/*/speedup", {"value": 20}), ("http/*", {"ratio": 0.5}),
         ("select/quest/depth*", {"ratio": 0.6, "peer_ratio": 6}), ("select/clusterkv/depth*", {"ratio": 0.6, "peer_ratio": 6}),
         ("select/1b/quest/depth*", {"peer_ratio": 2.5}), ("select/1b/clusterkv/depth*", {"peer_ratio": 2.5}), ("select/quest/speedup*", {"value": 2}),
         ("select/clusterkv/speedup*", {"value": 2}), ("select/shadow/share*", {"ratio": 1}), ("scheduler/goodput/*", {"ratio": 0.9}), ("scheduler/swap*", {"ratio": 0.909})]
# The same where less is better: the greatest values that do.
LIMITS = [("admission/credit/*", {"value": 200}), ("scheduler/iteration/*", {"value": 1}), ("rollback/fence", {"value": 100}), ("loaded/operator/p99", {"value": 20000})]
SHAPES, TYPES = ("135m", "1b"), ("q8_0", "f16")
PARTS = ("depth-0", "depth-4096", "depth-16384", "depth-32768", "prefill-512", "batch-8")


def model(build, shape, kind):
    """A GGUF of that shape with random weights, made once: speed depends on the shape alone."""
    folder = os.path.join(build, "models")
    os.makedirs(folder, exist_ok=True)
    out = os.path.join(folder, f"{shape}-{kind}.gguf")
    if not os.path.exists(out):
        subprocess.run([sys.executable, os.path.join(ROOT, "tools", "random_model.py"), "--shape", shape, "--type", kind, "--out", out + ".new"], check=True, timeout=600)
        os.rename(out + ".new", out)
    return out


def jobs(build, only, peer):
    """(program, arguments) of every benchmark; of a model's parts ours and the peer's in turn, so that both meet the same machine."""
    program = lambda stem: os.path.join(build, "bench", stem)
    for stem in sorted(os.path.splitext(f)[0] for f in os.listdir(os.path.join(ROOT, "bench")) if f.endswith(".c")):
        if stem not in ("decode", "peer") and stem.startswith(only):
            large = {"restore": ["--name", "135m/8192"], "scheduler": []}
            yield program(stem), [model(build, "135m", "q8_0"), *large[stem]] if stem in large else []
    libraries, threads, selects = fetch_peer(build) if peer else None, "2", "select".startswith(only)
    if selects:
        yield program("select"), ["--shape", "1b", "quest", "clusterkv", "--quick"]
    for shape in SHAPES if peer and selects and only else ():
        yield program("peer"), [libraries, model(build, shape, "q8_0"), threads, f"{shape}/q8_0", "depth-32768"]
    for label in (f"{shape}/{kind}" for shape in SHAPES for kind in TYPES):
        for part in PARTS:
            if not f"decode/{label}/{part}".startswith(only):
                continue
            path = model(build, *label.split("/"))
            yield program("decode"), [path, "--name", label, "--threads", threads, part]
            if peer:
                yield program("peer"), [libraries, path, threads, label, part]


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


def beside_full_attention(rows):
    """Steps that select, beside the peer's over all rows of the same shape."""
    for shape, prefix in ("135m", "select/"), ("1b", "select/1b/"):
        tokens_per_s = rows.get(f"decode/{shape}/q8_0/depth-32768", {}).get("peer")
        for name, row in rows.items():
            if tokens_per_s and name.startswith(prefix) and name.endswith("/depth-32768") and name.count("/") == prefix.count("/") + 1:
                row["peer"] = 1000 / tokens_per_s


def judge(row):
    row.setdefault("floor", None), row.setdefault("ratio", None), row.setdefault("peer", None)
    faster_is_more = not row["unit"].endswith("us") and row["unit"] not in ("ms", "s")
    row["peer_ratio"] = None
    if row["peer"] and row.get("value"):
        row["peer_ratio"] = row["value"] / row["peer"] if faster_is_more else row["peer"] / row["value"]
    least = {field: v for pattern, fields in GOALS if fnmatch.fnmatchcase(row["name"], pattern) for field, v in fields.items() if row[field] is not None}
    most = {field: v for pattern, fields in LIMITS if fnmatch.fnmatchcase(row["name"], pattern) for field, v in fields.items()}
    row["goal"] = ", ".join([f"{field} >= {v}" for field, v in least.items()] + [f"{field} <= {v}" for field, v in most.items()]) or None
    row["met"] = all(row[f] >= v for f, v in least.items()) and all(row[f] <= v for f, v in most.items()) if least or most else None
    return row


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--build", default="build")
    p.add_argument("--peer", action="store_true", help="measure the peer in the same run")
    p.add_argument("--only", default="", metavar="PREFIX", help="one part: kernels, tier, select, decode/135m, decode/1b/f16/depth-4096 ...")
    a = p.parse_args()
    build, rows, broken = os.path.join(ROOT, a.build), {}, 0
    for program, arguments in jobs(build, a.only, a.peer):
        try:
            for row in figures(program, arguments):
                rows.setdefault(row["name"], {"name": row["name"], "value": None, "unit": row["unit"]}).update(row)
        except (OSError, RuntimeError, ValueError, subprocess.TimeoutExpired) as e:
            print(f"FAIL {os.path.basename(program)}: {e}", file=sys.stderr)
            broken += 1
    beside_full_attention(rows)
    result = [judge(row) for row in rows.values()]
    with open(os.path.join(build, "bench.json"), "w") as f:
        json.dump(result, f, indent=1)
    for row in result:
        show = lambda v: "-" if v is None else f"{v:.3g}" if isinstance(v, float) else str(v)
        print(f"{row['name']:44} {show(row['value']):>10} {row['unit']:<12} floor {show(row['floor']):>9}  ratio {show(row['ratio']):>6}  peer {show(row['peer']):>8}  "
              f"{show(row['peer_ratio']):>6}  {'' if row['met'] is None else ('met   ' if row['met'] else 'missed') + ' ' + row['goal']}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
