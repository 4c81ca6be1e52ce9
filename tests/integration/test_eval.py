"""kvasir eval: a sane baseline, a row per method, what it refuses, and the damage of a budget that is too small."""
import json
import subprocess
import unittest

from support import KVASIR, ROOT


def evaluate(*args):
    p = subprocess.run([KVASIR, "eval", *args, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=240)
    return p.returncode, json.loads(p.stdout) if p.stdout.strip() else None, p.stderr


class Eval(unittest.TestCase):
    def test_every_method_is_set_beside_a_sane_baseline(self):
        status, r, err = evaluate("--suite", "passkey", "--length", "320", "--samples", "6", "--budget", "128")
        self.assertEqual(status, 0, err)
        self.assertEqual([(s["suite"], s["sane"]) for s in r["suites"]], [("passkey", True)])
        rows = {x["pipeline"]: x for x in r["rows"]}
        self.assertEqual(set(rows), {"resident", "quest", "sparq", "infinigen", "pqcache", "infllm", "clusterkv", "magicpig"})
        self.assertIsNone(rows["resident"]["difference"])
        self.assertGreater(rows["resident"]["score"]["lower"], 0.2)
        for name, x in rows.items():
            self.assertLessEqual(x["score"]["lower"], x["score"]["value"])
            self.assertGreater(x["token_us"]["p50"], 0)
            if name == "resident":
                continue
            self.assertLessEqual(x["difference"]["lower"], x["difference"]["value"], name)
            for field in ("selector_us", "fallback_share", "index_build_ms"):
                self.assertIsNotNone(x[field], (name, field))
            self.assertGreater(x["traffic"]["attended_share"], 0)
            self.assertGreater(x["units"], 0)
            self.assertEqual(x["bounds_broken"], 0, name)

    def test_one_page_omits_more_mass_than_eight(self):
        mass = []
        for budget in ("16", "128"):
            status, r, err = evaluate("--suite", "ppl", "--length", "320", "--samples", "3", "--pipeline", "quest", "--param", f"budget_rows={budget}", "--sampled", "1")
            self.assertEqual(status, 0, err)
            base, row = r["rows"]
            self.assertEqual(row["measure"], "nats_per_token")
            self.assertLess(base["score"]["value"], 4)
            mass.append(row["omitted_mass"]["mean"])
        self.assertGreater(mass[0], mass[1] + 0.05)

    def test_an_exact_pipeline_loses_nothing(self):
        status, r, err = evaluate("--suite", "ppl", "--length", "256", "--samples", "3", "--pipeline", "layerwise")
        self.assertEqual(status, 0, err)
        self.assertEqual([r["rows"][1]["difference"][x] for x in ("value", "lower", "upper")], [0, 0, 0])

    def test_what_the_model_cannot_do_is_not_scored(self):
        status, r, err = evaluate("--suite", "vt", "--length", "512", "--samples", "4", "--pipeline", "quest")
        self.assertEqual(status, 1, err)
        self.assertFalse(r["suites"][0]["sane"])
        self.assertIn("baseline", r["suites"][0]["reason"])
        self.assertEqual([x["pipeline"] for x in r["rows"]], ["resident"])

    def test_a_sweep_changes_one_parameter_at_a_time(self):
        status, r, err = evaluate("--suite", "passkey", "--length", "256", "--samples", "6", "--sweep", "quest", "--budget", "64", "--sampled", "0.5")
        self.assertEqual(status, 0, err)
        rows = r["rows"][1:]
        self.assertEqual(rows[0]["variant"], "as it stands")
        self.assertIn("page_rows=8", [x["variant"] for x in rows])
        for x in rows[1:]:
            changed = [k for k in x["params"] if x["params"][k] != rows[0]["params"][k]]
            self.assertEqual(len(changed), 1, x["variant"])
            for field in ("selector_us", "fallback_share"):
                self.assertIsNotNone(x[field])
            self.assertIsNotNone(x["omitted_mass"]["mean"])
            self.assertIsNotNone(x["output_error"]["mean"])

    def test_the_sources_seven_baselines_stand_side_by_side(self):
        status, r, err = evaluate("--baselines", "--suite", "passkey", "--length", "320", "--samples", "6", "--budget", "64", "--link", "2e9")
        self.assertEqual(status, 0, err)
        rows = {x["baseline"]: x for x in r["rows"]}
        self.assertEqual(list(rows), ["full cache, resident", "exact offload, no overlap", "exact offload, pipelined", "static window, exact offload", "retrieval, full-attention oracle",
                                      "retrieval, exact fallback", "recompute"])
        for name in ("exact offload, no overlap", "exact offload, pipelined", "static window, exact offload", "recompute"):
            self.assertEqual([rows[name]["difference"][x] for x in ("value",)], [0], name)
        serial, pipelined, window = (rows[n] for n in ("exact offload, no overlap", "exact offload, pipelined", "static window, exact offload"))
        self.assertTrue(serial["emulated"])
        self.assertEqual(serial["moved_bytes_a_token"], pipelined["moved_bytes_a_token"])
        self.assertLess(window["moved_bytes_a_token"], pipelined["moved_bytes_a_token"])
        self.assertGreater(serial["stall_us"], pipelined["stall_us"])
        self.assertGreater(rows["recompute"]["cold_ms"], serial["cold_ms"])
        self.assertEqual(rows["full cache, resident"]["moved_bytes_a_token"], 0)
        self.assertGreater(rows["retrieval, full-attention oracle"]["omitted_mass"]["mean"], 0.01)
        self.assertLess(rows["retrieval, exact fallback"]["omitted_mass"]["mean"], rows["retrieval, full-attention oracle"]["omitted_mass"]["mean"])

    def test_a_method_without_an_estimate_has_no_exact_fallback(self):
        status, r, err = evaluate("--baselines", "--pipeline", "infllm", "--suite", "passkey", "--length", "320", "--samples", "2")
        self.assertEqual(status, 0, err)
        rows = {x["baseline"]: x for x in r["rows"]}
        self.assertEqual(len(rows), 7)
        row = rows["retrieval, exact fallback"]
        self.assertIn("no online estimate", row["missing"])
        for name in ("score", "difference", "omitted_mass", "fallback_share"):
            self.assertIsNone(row[name], name)
        self.assertNotIn("missing", rows["retrieval, full-attention oracle"])

    def test_what_makes_no_sense_is_refused_by_name(self):
        for args, status, word in ((["--suite", "haystack"], 1, "haystack"), (["--pipeline", "qest"], 1, "qest"), (["--pipeline", "em-llm"], 1, "NOT_BUILT"),
                                   (["--pipeline", "quest", "--param", "budget_rows=0"], 1, "budget_rows"), (["--pipeline", "pqcache", "--param", "subspaces=3", "--suite", "passkey", "--length", "128", "--samples", "1"], 1, "subspaces"),
                                   (["--length", "8"], 2, "--length"), (["--samples", "many"], 2, "--samples"), (["--sweep", "layerwise"], 1, "layerwise"),
                                   (["--param", "k=1"], 2, "--pipeline"), (["--baselines", "--sweep", "quest"], 2, "--sweep"), (["--link", "1e9"], 2, "--baselines"), (["--baselines", "--pipeline", "layerwise"], 1, "layerwise"), (["--suite", "kv", "--length", "96"], 1, "kv"), (["--budget", "8"], 1, "64"), (["--length", "8192", "--suite", "ppl", "--samples", "1"], 1, "CONTEXT_OVERRUN")):
            got, _, err = evaluate(*args)
            self.assertEqual(got, status, (args, err))
            self.assertIn(word, err, args)


if __name__ == "__main__":
    unittest.main()
