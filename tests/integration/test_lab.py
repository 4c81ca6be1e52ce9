"""kvasir lab: methods on given tensors against plain references here, cases it must refuse, fixtures, and the operators' page."""
import json
import math
import os
import random
import re
import struct
import subprocess
import tempfile
import unittest

from support import KVASIR, ROOT, Daemon

# At least 31, 38, 60, 47 and 37 are promised.
FIXTURES = {"contract-5-lifecycle": 63, "contract-6-sparq-quest-infinigen": 31, "contract-6-index": 52, "contract-6-recall-units": 75, "contract-7-error-fallback": 55, "contract-8-service": 58}


def lab(*args):
    p = subprocess.run([KVASIR, "lab", *args, "--json"], capture_output=True, text=True, timeout=60)
    return p.returncode, json.loads(p.stdout) if p.stdout.strip() else None, p.stderr


def numbers(rng, *shape):
    if not shape:
        return rng.gauss(0, 1)
    return [numbers(rng, *shape[1:]) for _ in range(shape[0])]


def softmax(scores):
    top = max(scores)
    e = [math.exp(s - top) for s in scores]
    return [x / sum(e) for x in e]


def attend(q, k, v, rows):
    p = softmax([sum(a * b for a, b in zip(q, k[i])) / math.sqrt(len(q)) for i in rows])
    return [sum(w * v[i][c] for w, i in zip(p, rows)) for c in range(len(q))]


class Lab(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        rng = random.Random(5)
        self.case = {"method": "dense", "params": {}, "heads": {"q": 4, "kv": 2}, "d_h": 8, "q": numbers(rng, 4, 8), "k": numbers(rng, 2, 70, 8),
                     "v": numbers(rng, 2, 70, 8), "prefill_q": numbers(rng, 4, 6, 8), "persistent": [], "resident": [], "scale": None}

    def path(self, name):
        return os.path.join(self.dir.name, name)

    def run_case(self, **changes):
        case = dict(self.case, **changes)
        with open(self.path("case.json"), "w") as f:
            json.dump({k: v for k, v in case.items() if v != "absent"}, f)
        return lab(self.path("case.json"))

    def ok(self, **changes):
        status, result, err = self.run_case(**changes)
        self.assertEqual(status, 0, err)
        return result

    def refused(self, code, param=None, **changes):
        status, result, err = self.run_case(**changes)
        self.assertEqual(status, 1, (result, err))
        self.assertEqual(result["error"]["code"], code)
        if param:
            self.assertIn(param, result["error"]["param"])
        self.assertTrue(result["error"]["message"])
        return result["error"]

    def assertClose(self, a, b, tolerance=1e-5):
        for x, y in zip(a, b, strict=True):
            self.assertAlmostEqual(x, y, delta=tolerance)

    # ------------------------------------------------------------ results

    def test_dense_is_softmax_attention(self):
        r = self.ok()
        for h in range(4):
            self.assertClose(r["output"][h], attend(self.case["q"][h], self.case["k"][h // 2], self.case["v"][h // 2], range(70)))
        self.assertEqual(r["output"], r["dense_output"])
        self.assertEqual(r["support"], [list(range(70))] * 4)
        self.assertEqual(r["omitted_mass"], [0.0] * 4)

    def test_error_stages_are_kept_apart(self):
        norm = lambda a, b: math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)))
        for row_type in ("f32", "f16"):
            r = self.ok(method="sparq", params={"k": 8, "local_rows": 2, "mean_term": 1}, row_type=row_type)
            stage = r["error_stages"]
            self.assertEqual(list(stage), ["index_representation", "candidate_support", "payload_representation", "reduction_estimator"])
            for h in range(4):
                q, k, v, rows = self.case["q"][h], self.case["k"][h // 2], self.case["v"][h // 2], r["support"][h]
                part, dense = attend(q, k, v, rows), attend(q, k, v, range(70))
                near = 1e-6 if row_type == "f32" else 5e-3
                self.assertLess(len(rows), 70)
                self.assertAlmostEqual(stage["candidate_support"][h], norm(part, dense), delta=near)
                self.assertAlmostEqual(stage["reduction_estimator"][h], norm(r["output"][h], part), delta=near)
                self.assertGreater(stage["reduction_estimator"][h], 1e-3)
                payload = stage["payload_representation"][h]
                if row_type == "f32":
                    self.assertEqual(payload, 0)
                else:
                    self.assertTrue(0 < payload < 5e-3, payload)
                self.assertLessEqual(r["output_error"][h], stage["candidate_support"][h] + stage["reduction_estimator"][h] + 1e-9)
                recall = stage["index_representation"]["candidate_recall"][h]
                self.assertGreaterEqual(1 if recall is None else recall, r["recall"][h])
        dense = self.ok()["error_stages"]
        self.assertEqual(dense["index_representation"]["candidate_recall"], [1] * 4)
        self.assertEqual(dense["candidate_support"], [0] * 4)
        self.assertEqual(self.ok(method="quest", params={"page_rows": 16, "budget_rows": 32})["error_stages"]["index_representation"]["candidate_recall"], [None] * 4)

    def test_quest_pages_by_their_bound(self):
        r = self.ok(method="quest", params={"page_rows": 16, "budget_rows": 48}, persistent=[0, 1], resident=[0])
        for h in range(4):
            q, k = self.case["q"][h], self.case["k"][h // 2]
            bound = [sum(max(q[c] * f(k[t][c] for t in range(16 * p, 16 * p + 16)) for f in (min, max)) for c in range(8)) for p in range(4)]
            best = sorted(range(4), key=lambda p: (-bound[p], p))
            self.assertEqual(r["candidates"][h], best)
            self.assertClose(r["scores"][h], sorted(bound, reverse=True), 1e-4)
            self.assertEqual(r["units"][h], sorted(best[:2]) + [4])
            rows = sorted({0, 1} | {t for p in best[:2] + [4] for t in range(16 * p, min(16 * p + 16, 70))})
            self.assertEqual(r["support"][h], rows)
            self.assertClose(r["output"][h], attend(q, k, self.case["v"][h // 2], rows))
            mass = softmax([sum(a * b for a, b in zip(q, x)) / math.sqrt(8) for x in k])
            self.assertAlmostEqual(r["retained_mass"][h], sum(mass[t] for t in rows), delta=1e-6)
            top = sorted(range(70), key=lambda t: (-mass[t], t))[:len(rows)]
            self.assertAlmostEqual(r["recall"][h], len(set(top) & set(rows)) / len(rows))
            self.assertEqual(r["recall_k"][h], len(rows))
            self.assertLessEqual(r["output_error"][h], r["bound"][h])
            self.assertClose([u / r["state"]["l"][h] for u in r["state"]["u"][h]], r["output"][h])
        union = [set(r["support"][2 * h]) | set(r["support"][2 * h + 1]) for h in range(2)]
        self.assertEqual(r["ledger"]["payload_bytes"], sum(map(len, union)) * 2 * 8 * 4)
        self.assertEqual(r["ledger"]["transfer_bytes"], sum(len(u - {0}) for u in union) * 2 * 8 * 4)

    def test_full_budget_has_the_bits_of_dense(self):
        for method, params in (("quest", {"budget_rows": 70}), ("sparq", {"k": 70, "mean_term": True}), ("infinigen", {"alpha": 1e9}),
                               ("pqcache", {"top_rows": 70}), ("infllm", {"unit_rows": 8, "units": 99, "local_rows": 8, "sink_rows": 2}), ("clusterkv", {"budget_rows": 70})):
            for row_type in ("f32", "f16", "bf16"):
                r = self.ok(method=method, params=params, row_type=row_type)
                self.assertEqual(r["output"], r["dense_output"], method)

    def test_steps_grow_seal_and_drop(self):
        whole = self.ok(method="quest", params={"page_rows": 4, "budget_rows": 16})
        steps = [{"build": 30}, {"append": 33}, {"drop": 61}, {"append": 9}]
        grown = self.ok(method="quest", params={"page_rows": 4, "budget_rows": 16, "steps": steps})
        self.assertEqual(grown["support"], whole["support"])
        self.assertEqual(grown["output"], whole["output"])
        sealed = self.ok(method="clusterkv", params={"clusters": 4, "sink_rows": 2, "budget_rows": 8, "steps": [{"build": 40}, {"append": 20}, {"seal": True}]})
        self.assertEqual([len(s) for s in sealed["support"]], [10] * 4)
        self.assertEqual(sealed["rows"], 60)
        self.refused("BAD_ARGUMENT", "steps", method="quest", params={"steps": [{"build": 60}, {"append": 11}]})
        self.refused("BAD_ARGUMENT", "steps", method="quest", params={"steps": [{"bild": 60}]})

    def test_safetensors_hold_the_same_tensors(self):
        flat = lambda x: [x] if not isinstance(x, list) else [z for y in x for z in flat(y)]
        k = flat(self.case["k"])
        header = json.dumps({"keys": {"dtype": "F32", "shape": [2, 70, 8], "data_offsets": [0, 4 * len(k)]},
                             "half": {"dtype": "F16", "shape": [2, 70, 8], "data_offsets": [4 * len(k), 6 * len(k)]},
                             "short": {"dtype": "F32", "shape": [2, 70, 8], "data_offsets": [0, 8]},
                             "beyond": {"dtype": "F32", "shape": [2, 70, 8], "data_offsets": [4 * len(k), 8 * len(k)]},
                             "ints": {"dtype": "I32", "shape": [2, 70, 8], "data_offsets": [0, 4 * len(k)]}}).encode()
        with open(self.path("t.safetensors"), "wb") as f:
            f.write(struct.pack("<Q", len(header)) + header + struct.pack(f"<{len(k)}f", *k) + struct.pack(f"<{len(k)}e", *k))
        plain = self.ok(method="quest")
        named = self.ok(method="quest", k={"safetensors": "t.safetensors", "name": "keys"})
        self.assertEqual(named["support"], plain["support"])
        self.assertEqual(named["output"], plain["output"])
        half = self.ok(k={"safetensors": self.path("t.safetensors"), "name": "half"})
        for h in range(4):
            self.assertClose(half["output"][h], self.ok()["output"][h], 1e-2)
        for name, code in (("missing", "NOT_FOUND"), ("short", "BAD_ARGUMENT"), ("beyond", "FILE_UNREADABLE"), ("ints", "UNKNOWN_TENSOR_TYPE")):
            self.refused(code, name, k={"safetensors": "t.safetensors", "name": name})
        self.refused("FILE_UNREADABLE", k={"safetensors": "nowhere.safetensors", "name": "keys"})
        with open(self.path("t.safetensors"), "wb") as f:
            f.write(struct.pack("<Q", 1 << 60))
        self.refused("BAD_ARGUMENT", "t.safetensors", k={"safetensors": "t.safetensors", "name": "keys"})

    # ------------------------------------------------------------ refusals

    def test_what_a_case_cannot_be(self):
        q = self.case["q"]
        self.refused("UNKNOWN_KEY", "methods", methods="quest")
        self.refused("NOT_FOUND", "method", method="quests")
        self.refused("NOT_BUILT", "method", method="retroinfer")
        self.assertIn("page_rows", self.refused("UNKNOWN_KEY", "pagerows", method="quest", params={"pagerows": 4})["hint"])
        self.refused("BAD_ARGUMENT", "page_rows", method="quest", params={"page_rows": 0})
        self.refused("BAD_ARGUMENT", "page_rows", method="quest", params={"page_rows": "many"})
        self.refused("BAD_ARGUMENT", "score", method="infllm", params={"score": "mean"})
        self.refused("UNKNOWN_KEY", "seeds", method="quest", params={"seeds": [1]})
        self.refused("BAD_ARGUMENT", "q", q=[q[0], q[1][:7]])
        self.refused("BAD_ARGUMENT", "q", q=[row[:7] for row in q], prefill_q=None)
        self.refused("BAD_ARGUMENT", "heads", q=q[:3], prefill_q=None, heads=None)
        self.refused("BAD_ARGUMENT", "heads", heads={"q": 4, "kv": 4})
        self.refused("BAD_ARGUMENT", "d_h", d_h=16)
        self.refused("BAD_ARGUMENT", "k", k="absent")
        self.refused("BAD_ARGUMENT", "v", v=[x[:69] for x in self.case["v"]])
        self.refused("BAD_ARGUMENT", "persistent", persistent=[70])
        self.refused("BAD_ARGUMENT", "resident", resident=[-1])
        self.refused("BAD_ARGUMENT", "scale", scale=0)
        self.refused("BAD_ARGUMENT", "row_type", row_type="f8")
        self.refused("BAD_ARGUMENT", "prefill_q", prefill_q=[[[1.0] * 8]] * 3)

    def test_usage_and_unreadable_files(self):
        self.assertEqual(subprocess.run([KVASIR, "lab"], capture_output=True).returncode, 2)
        self.assertEqual(lab(self.path("none.json"))[1]["error"]["code"], "FILE_UNREADABLE")
        with open(self.path("bad.json"), "w") as f:
            f.write("{")
        self.assertEqual(lab(self.path("bad.json"))[1]["error"]["code"], "BAD_JSON")

    # ------------------------------------------------------------ fixtures and the page

    def test_fixtures_are_rejected_for_their_reasons(self):
        for name, count in FIXTURES.items():
            file = os.path.join(ROOT, "tests", "fixtures", name + ".json")
            status, result, _ = lab("--fixture", file)
            self.assertEqual((status, result["accepted"], result["rejected"], result["wrong"]), (0, 1, count, []))
            with open(file) as f:
                document = json.load(f)
            self.assertEqual(len({json.dumps([m["path"], m["value"]]) for m in document["mutations"]}), count)
            first, second = document["mutations"][:2]
            first["reason"] = "OUT_OF_MEMORY"
            value = document["valid"]
            for step in second["path"].split("."):
                value = value[int(step) if isinstance(value, list) else step]
            second["value"] = value
            with open(self.path(name + ".json"), "w") as f:
                json.dump(document, f)
            status, result, _ = lab("--fixture", f.name)
            self.assertEqual((status, len(result["wrong"])), (1, 2))

    def test_the_operators_page_lists_every_method_and_parameter(self):
        status, result, _ = lab("--list")
        self.assertEqual(status, 0)
        with open(os.path.join(ROOT, "docs", "operators", "pipelines.md")) as f:
            page = f.read()
        sections = {m.group(1): m.group(2) for m in re.finditer(r"^### `([a-z]+)`[^\n]*\n(.*?)(?=^##|\Z)", page, re.S | re.M)}
        methods = {m["name"]: m for m in result["methods"] if m["params"]}
        self.assertEqual(sorted(sections), sorted(methods))
        for name, method in methods.items():
            rows = [f"| `{p['name']}` | {p['default']:g} | {p['min']:g} – {p['max']:g} | {p['unit'] or '–'} | {p['help']} | {p['source']} |" for p in method["params"]]
            self.assertEqual([line for line in sections[name].splitlines() if line.startswith("| `")], rows, name)
            self.assertIn(f"Omitted mass online: {(method['omitted_mass_estimate'] or 'none').split(',')[0]}", sections[name], name)
            self.assertRegex(page, rf"(?m)^\| `{name}` \| {method['byte_cost']:g} \|")
            self.assertIn(f"first {method['dense_layers']} layers dense" if method["dense_layers"] != 1 else "first layer dense", sections[name].replace("no layers dense", "first 0 layers dense"))

    def test_every_registered_row_has_its_contract_and_says_whether_it_is_built(self):
        status, result, _ = lab("--list")
        self.assertEqual(status, 0)
        rows = {r["name"]: r for r in result["pipelines"]}
        published = {"flexgen", "cachedattention", "infercept", "headinfer", "neo", "instinfer-dense", "instinfer-sparf", "sparq", "quest", "infinigen", "pqcache", "retrievalattention",
                     "squeezedattention", "magicpig", "infllm", "em-llm", "clusterkv", "scoutattention", "icecache", "kvdrive", "retroinfer"}
        self.assertEqual(len(published), 21)
        self.assertLessEqual(published, set(rows))
        fields = ("support", "representation", "tier", "unit", "index", "update_phase", "compute_site", "exactness", "fallback", "workload")
        for name in published:
            for field in fields:
                self.assertTrue(rows[name][field].strip(), (name, field))
        self.assertEqual({n for n in published if rows[n]["exactness"] == "exact"}, {"flexgen", "cachedattention", "infercept", "headinfer", "neo", "instinfer-dense"})
        self.assertLessEqual({m["name"] for m in result["methods"]} - {"dense"}, {n for n in rows if rows[n]["built"]})
        p = subprocess.run([KVASIR, "lab", "--list"], cwd=ROOT, capture_output=True, text=True, timeout=60)
        missing = p.stdout.split("NOT_BUILT", 1)[1]
        for name, row in rows.items():
            self.assertEqual(bool(re.search(rf"(?m)^  {re.escape(name)} ", missing)), not row["built"], name)

    def test_each_method_refuses_what_makes_no_sense_by_name(self):
        """The same in the lab and when a rollout is created; the operator's page names each."""
        d = Daemon()
        self.addCleanup(d.stop)
        with open(os.path.join(ROOT, "docs", "operators", "pipelines.md")) as f:
            sections = {m.group(1): m.group(2) for m in re.finditer(r"^### `([a-z]+)`[^\n]*\n(.*?)(?=^##|\Z)", f.read(), re.S | re.M)}
        base = {"q": [[1.0] * 8], "k": [[[1.0] * 8] * 3], "v": [[[1.0] * 8] * 3]}
        for method, params, param in (("quest", {"budget_rows": 0}, "budget_rows"), ("sparq", {"k": 16, "local_rows": 32}, "local_rows"), ("infinigen", {"partial_ratio": 0}, "partial_ratio"),
                                      ("infinigen", {"partial_ratio": 1.5}, "partial_ratio"), ("pqcache", {"subspaces": 3}, "subspaces"), ("pqcache", {"bits": 9}, "bits"),
                                      ("infllm", {"unit_rows": 4, "representatives": 8}, "representatives"), ("clusterkv", {"window_rows": 0}, "window_rows"), ("magicpig", {"bits": 15}, "bits"),
                                      ("magicpig", {"tables": 4, "min_collisions": 5}, "min_collisions")):
            with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
                json.dump({"method": method, "params": params, **base}, f)
                f.flush()
                status, answer, err = lab(f.name)
            self.assertEqual((status, answer["error"]["code"]), (1, "BAD_ARGUMENT"), (method, params, err))
            status, answer = d.post("/api/v1/rollouts", {"name": "x", "pipeline": method, "params": params, "contract": "approximate"})
            self.assertEqual((status, answer["error"]["code"], answer["error"]["param"]), (400, "BAD_ARGUMENT", param), (method, params))
            self.assertTrue(re.search(rf"Refused:[^\n]*`{param}`", sections[method]), (method, param))

    def test_prompts_shorter_than_a_page_are_read_whole(self):
        """Three rows are fewer than any page, unit, window or codebook: every method reads them all, but for the one that samples."""
        rows = [[float((i * 7 + c * 3) % 5) for c in range(8)] for i in range(3)]
        for method in ("quest", "sparq", "infinigen", "pqcache", "infllm", "clusterkv", "magicpig"):
            with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
                json.dump({"method": method, "params": {}, "q": [[0.1] * 8], "k": [rows], "v": [rows]}, f)
                f.flush()
                status, r, err = lab(f.name)
            self.assertEqual(status, 0, (method, err))
            self.assertEqual(r["support"], [[0, 1, 2]], method)
            self.assertEqual(r["omitted_mass"], [0], method)


if __name__ == "__main__":
    unittest.main()
