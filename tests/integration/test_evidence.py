"""What gates rest on: held-out prompts, samples on disk, gate sets tried without effect, drills — through the API and the command line."""
import json
import os
import subprocess
import tempfile
import unittest

import support

STEPS = [{"stage": "SHADOW", "min_seconds": 600}, {"stage": "CANARY", "fraction": 0.5}, {"stage": "FULL"}]
STEPS.insert(2, {"stage": "RAMP", "fraction": 0.7})


def create(d, budget, gates):
    status, r = d.post("/api/v1/rollouts", {"name": "evidence", "pipeline": "quest", "params": {"page_rows": 4, "budget_rows": budget}, "gates": gates, "steps": STEPS})
    assert status == 201, r
    d.wait_until(lambda: d.get(f"/api/v1/rollouts/{r['id']}")[1]["stage"] != "OFF")
    return r["id"]


def gate(d, rollout, metric):
    return next(g for g in d.get(f"/api/v1/rollouts/{rollout}")[1]["gates"] if g["metric"] == metric)


def kvasir(d, *args):
    p = subprocess.run([support.KVASIR, "--url", d.url, "rollout", *args], capture_output=True, text=True, timeout=170)
    return p.returncode, p.stdout, p.stderr


class QualityTest(unittest.TestCase):
    def test_held_out_prompts_pass_a_good_candidate_and_fail_a_bad_one(self):
        with support.Daemon(config={"quality": {"share": 1}}) as d:
            good = create(d, 96, [{"metric": "quality_drop", "threshold": 0.3, "min_n": 15}])
            d.wait_until(lambda: gate(d, good, "quality_drop")["verdict"] == "PASS", timeout=60)
            self.assertEqual(d.get("/api/v1/status")[1]["live"]["requests"] >= 30, True)
            # Nobody was served by a candidate in shadow, and its own samples know nothing of the prompts.
            self.assertEqual(gate(d, good, "omitted_mass")["n"], 0)
            receipts = d.get("/api/v1/receipts?kind=request&limit=1000")[1]["receipts"]
            self.assertEqual({r["tenant"] for r in receipts}, {"kvasir:quality"})
            d.post(f"/api/v1/rollouts/{good}/rollback")
            d.wait_until(lambda: d.get("/api/v1/status")[1]["release"]["latched"] is False)
            bad = create(d, 4, [{"metric": "quality_drop", "threshold": 0, "min_n": 15}])
            d.wait_until(lambda: d.get(f"/api/v1/rollouts/{bad}")[1]["stage"] == "EXACT_BASELINE", timeout=90)
            r = d.get(f"/api/v1/rollouts/{bad}")[1]
            self.assertEqual(r["transitions"][-1]["actor"], "gate:quality_drop")
            # What it was judged by is still there.
            status, _, body = d.request("GET", f"/api/v1/rollouts/{bad}/samples?metric=quality_drop")
            values = [json.loads(line)["value"] for line in body.splitlines()]
            g = gate(d, bad, "quality_drop")
            self.assertEqual((status, len(values)), (200, g["n"]))
            self.assertAlmostEqual(sum(values) / len(values), g["value"], places=6)

    def test_prompts_that_cannot_be_used_are_refused_at_the_start(self):
        with tempfile.TemporaryDirectory() as home:
            path = os.path.join(home, "p.jsonl")
            with open(path, "w") as f:
                f.write('{"prompt": "a", "answer": "b"}\n{"prompt": "a"}\n')
            status, _, err = support.run("--listen", "127.0.0.1:0", "--state", home, "--model", support.MODEL, "--set", f"quality.prompts={path}")
            self.assertEqual(status, 1)
            self.assertIn("BAD_ARGUMENT", err)
            self.assertIn("line 2", err)


class EvidenceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = support.Daemon("--set", "shadow.fraction=1", "--set", "quality.share=0")
        loose = [{"metric": m, "threshold": 0.9} for m in ("omitted_mass", "output_error")]
        cls.rollout = create(cls.d, 16, [{"metric": "drill_rollback", "threshold": 3600}, *loose])
        cls.d.complete("The quick brown fox jumps over the lazy dog and runs", max_tokens=40)
        cls.d.wait_until(lambda: gate(cls.d, cls.rollout, "omitted_mass")["n"] > 100)

    @classmethod
    def tearDownClass(cls):
        assert cls.d.stop() == 0

    def test_samples_are_what_the_gates_saw(self):
        d, path = self.d, f"/api/v1/rollouts/{self.rollout}/samples"
        status, headers, body = d.request("GET", path + "?metric=omitted_mass")
        rows = [json.loads(line) for line in body.splitlines()]
        g = gate(d, self.rollout, "omitted_mass")
        self.assertEqual((status, headers["Content-Type"], len(rows)), (200, "application/x-ndjson", g["n"]))
        self.assertAlmostEqual(sum(r["value"] for r in rows) / len(rows), g["value"], places=6)
        self.assertEqual({(r["stage"], r["arm"], r["kind"]) for r in rows}, {("SHADOW", "candidate", "unit")})
        last = d.request("GET", path + "?metric=omitted_mass&limit=3")[2].splitlines()
        self.assertEqual([json.loads(x) for x in last], rows[-3:])
        for query, code in (("?metric=omited_mass", "UNKNOWN_METRIC"), ("?metric=tenant_failures", "BAD_ARGUMENT"), ("?limit=0", "BAD_ARGUMENT"), ("?limit=1e9", "BAD_ARGUMENT")):
            self.assertEqual(d.get(path + query)[1]["error"]["code"], code)
        self.assertEqual(d.get("/api/v1/rollouts/r_000099/samples")[0], 404)
        status, out, err = kvasir(d, "samples", "--metric", "omitted_mass", "--limit", "3")
        self.assertEqual((status, out.encode().splitlines(), err), (0, last, ""))
        self.assertEqual(kvasir(d, "samples", "--metric", "nonsense")[0], 1)

    def test_a_dry_run_judges_and_moves_nothing(self):
        d = self.d
        before = d.get(f"/api/v1/rollouts/{self.rollout}")[1]
        status, a = d.post("/api/v1/gates/dry-run", {"gates": [{"metric": "omitted_mass", "threshold": 0.9, "min_n": 10}]})
        verdicts = {g["metric"]: g for g in a["gates"]}
        self.assertEqual((status, a["rollout"], a["stage"], a["complete"]), (200, self.rollout, "SHADOW", True))
        own = gate(d, self.rollout, "omitted_mass")
        self.assertEqual((verdicts["omitted_mass"]["verdict"], verdicts["omitted_mass"]["n"], verdicts["omitted_mass"]["value"]), ("PASS", own["n"], own["value"]))
        self.assertIn("output_error", verdicts, "the contract's own gates are judged too")
        a = d.post("/api/v1/gates/dry-run", {"gates": [{"metric": "omitted_mass", "threshold": 0.001, "min_n": 10}]})[1]
        self.assertEqual((a["verdict"], a["decided_by"]), ("FAIL", "omitted_mass"))
        after = d.get(f"/api/v1/rollouts/{self.rollout}")[1]
        self.assertEqual([after[k] for k in ("stage", "version", "epoch", "live")], [before[k] for k in ("stage", "version", "epoch", "live")])
        for body, code in (({}, "BAD_ARGUMENT"), ({"gates": [{"metric": "x"}]}, "UNKNOWN_METRIC"), ({"gates": [], "rollout": "r_000099"}, "NOT_FOUND"), ({"gates": [], "stage": "RAMP"}, "UNKNOWN_KEY"),
                           ({"gates": [{"metric": "omitted_mass"}] * 17}, "BAD_ARGUMENT")):
            self.assertEqual(d.post("/api/v1/gates/dry-run", body)[1]["error"]["code"], code, body)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump([{"metric": "omitted_mass", "threshold": 0.001, "min_n": 10}], f)
            f.flush()
            status, out, _ = kvasir(d, "gates", "--dry-run", f.name)
            self.assertEqual(status, 0)
            self.assertIn("FAIL by omitted_mass; nothing was moved", out)

    def test_every_drill_passes_and_is_recorded(self):
        d = self.d
        self.assertEqual(gate(d, self.rollout, "drill_rollback")["verdict"], "NO_DATA")
        names = [x["name"] for x in d.get("/api/v1/drills")[1]["drills"]]
        self.assertEqual(len(names), 7)
        for name in names:
            status, r = d.post(f"/api/v1/drills/{name}", timeout=150)
            self.assertEqual((status, r["state"], r["violations"]), (200, "PASSED", 0), r)
            receipt = d.get(f"/api/v1/receipts/{r['receipt']}")[1]
            self.assertEqual((receipt["kind"], receipt["rollout"]), ("DRILL", self.rollout))
        d.wait_until(lambda: gate(d, self.rollout, "drill_rollback")["verdict"] == "PASS")
        self.assertEqual([f for f in os.listdir(d.state) if f.startswith("drill-")], [], "its folder was not removed")
        self.assertEqual(d.post("/api/v1/drills/nonsense")[0], 404)
        status, out, _ = kvasir(d, "drill")
        self.assertEqual((status, out.count("PASSED")), (0, 7))
        self.assertIn("PASSED", kvasir(d, "drill", "stall")[1])

    def test_a_drill_can_fail(self):
        """The case as the daemon sends it, with a fallback policy that takes approximations where the contract forbids them."""
        policy = 'return { api = 1, name = "greedy", fallback = function(s) return { action = "ACCEPT_APPROXIMATE" } end }'
        with tempfile.TemporaryDirectory() as folder:
            case = {"dir": folder, "model": support.MODEL, "pipeline": "quest", "params": {}, "fallback": policy}
            p = subprocess.run([support.KVASIRD, "--drill", "illegal_fallback"], input=json.dumps(case), capture_output=True, text=True, timeout=60)
            r = json.loads(p.stdout)
            self.assertGreater(r["violations"], 0)
            self.assertIn("not legal", r["detail"])


if __name__ == "__main__":
    unittest.main()
