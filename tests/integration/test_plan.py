"""kvasir plan: cases, examples and sweeps as an operator calls them; the contract fixtures of identity, placement cost and near-data."""
import json
import os
import subprocess
import tempfile
import unittest

from tests.integration import support


def kvasir(*args, text=None):
    p = subprocess.run([support.KVASIR, *args], capture_output=True, text=True, input=text, timeout=60, cwd=support.ROOT, env=support.environment())
    return p.returncode, p.stdout, p.stderr


class PlanTest(unittest.TestCase):
    def test_every_example_is_a_case(self):
        status, out, _ = kvasir("--json", "plan", "--list")
        self.assertEqual(status, 0)
        models = json.loads(out)
        self.assertGreaterEqual(len(models), 18)
        for m in models:
            status, example, _ = kvasir("plan", "--example", m["model"])
            self.assertEqual(status, 0)
            status, out, err = kvasir("--json", "plan", "-", text=example)
            self.assertEqual(status, 0, err)
            answer = json.loads(out)
            self.assertEqual(set(answer["inputs"]), {i["name"] for i in m["inputs"]})
            self.assertEqual({t["name"]: t["value"] for t in answer["terms"]}, answer["values"])

    def test_inputs_change_the_answer(self):
        case = {"model": "row", "inputs": {"layers": 2, "kv_heads": 2, "positions": 8, "d_head": 4}}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump(case, f)
            f.flush()
            status, out, _ = kvasir("--json", "plan", f.name)
        self.assertEqual(status, 0)
        self.assertEqual(json.loads(out)["values"]["request_bytes"], 512)

    def test_lists_follow_the_number_of_layers(self):
        case = {"model": "exact-offload", "inputs": {"blocks": [64] * 6, "cold_blocks": [64] * 6, "fixed_ms": [0.1] * 6, "compute_ms": [0.5] * 6}}
        status, out, err = kvasir("--json", "plan", "-", text=json.dumps(case))
        self.assertEqual(status, 0, err)
        v = json.loads(out)["values"]
        fetch = 64 * 262144 / (24 << 30) * 1e3 + 0.1
        self.assertAlmostEqual(v["pipeline_ms"], fetch + 0.5 + 5 * max(fetch, 0.5), 9)

    def test_bad_cases_are_refused_with_a_reason(self):
        for text, reason in [("{", "BAD_JSON"), ('{"model":"nope"}', "NOT_FOUND"), ("{}", "NOT_FOUND"), ('{"model":"neo","inputs":{"layer":1}}', "UNKNOWN_KEY"),
                             ('{"model":"neo","inputs":{"layers":-1}}', "BAD_ARGUMENT"), ('{"model":"neo","inputs":{"layers":"4"}}', "BAD_ARGUMENT"),
                             ('{"model":"neo","inputs":{"layers":[1,2]}}', "BAD_ARGUMENT"), ('{"model":"exact-offload","inputs":{"compute_ms":[1]}}', "BAD_ARGUMENT"),
                             ('{"model":"exact-offload","inputs":{"compute_ms":[]}}', "BAD_ARGUMENT")]:
            status, _, err = kvasir("plan", "-", text=text)
            self.assertEqual(status, 1, text)
            self.assertIn(reason, err)
        self.assertEqual(kvasir("plan")[0], 2)
        self.assertEqual(kvasir("plan", "--example", "nope")[0], 1)

    def test_nine_sweeps(self):
        status, out, _ = kvasir("--json", "plan", "--sweep")
        self.assertEqual(status, 0)
        sweeps = json.loads(out)
        self.assertEqual(len(sweeps), 9)
        for s in sweeps:
            self.assertEqual(sum(abs(p["service_ms"] - 31.48) < 1e-9 for p in s["points"]) >= 1, True, s["control"])


class FixtureTest(unittest.TestCase):
    def test_mutations_are_refused_each_with_its_own_reason(self):
        for name, least in [("contract-2-identity", 20), ("contract-3-placement-cost", 20), ("contract-4-near-data", 44)]:
            status, out, err = kvasir("--json", "lab", "--fixture", os.path.join("tests", "fixtures", name + ".json"))
            self.assertEqual(status, 0, out + err)
            answer = json.loads(out)
            self.assertEqual(answer["accepted"], 1)
            self.assertGreaterEqual(answer["rejected"], least)
            self.assertEqual(answer["wrong"], [])
            with open(os.path.join(support.ROOT, "tests", "fixtures", name + ".json")) as f:
                reasons = [m["reason"] for m in json.load(f)["mutations"]]
            self.assertEqual(len(reasons), len(set(reasons)), name)


if __name__ == "__main__":
    unittest.main()
