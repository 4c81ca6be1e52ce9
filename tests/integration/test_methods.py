"""Every built method served by the real daemon: shadow and canary by hand, a generation long enough to append and seal, what it left out in the
receipts, and after a rollback the exact run's tokens."""
import os
import unittest

from support import ROOT, Daemon

HOLD = 'return { api = 1, name = "by-hand", release = function() return { action = "HOLD", reason = "by hand" } end }'
KEEP_BACK = 'return { api = 1, name = "none", admission = function() return { action = "FALLBACK", cause = "%s", priority = 50, reason = "none" } end }'
AT_LEAST, AFTER = 300, 40

# Small enough for 150 rows of prompt, so that each leaves rows out; windows and units are sealed within AT_LEAST tokens.
METHODS = {
    "quest": {"page_rows": 8, "budget_rows": 48},
    "sparq": {"r": 8, "k": 32, "local_rows": 8},
    "infinigen": {"cap_rows": 32},
    "pqcache": {"bits": 4, "sink_rows": 4, "local_rows": 16, "top_rows": 24},
    "infllm": {"unit_rows": 8, "representatives": 2, "units": 3, "sink_rows": 4, "local_rows": 24},
    "clusterkv": {"rows_per_cluster": 16, "sink_rows": 4, "budget_rows": 32, "window_rows": 48, "window_clusters": 3},
    "magicpig": {"tables": 8, "bits": 4, "sink_rows": 4, "local_rows": 8},
}


class Methods(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Without reuse of prefixes: the exact run must not read rows that the one it is compared with has left behind.
        # A device without room: these methods read rows where they are, and admission must not ask for any.
        cls.d = Daemon("--set", "shadow.fraction=1", "--set", "engine.prefix_reuse=false", "--set", "tiers.device.capacity_bytes=65536")
        cls.addClassCleanup(cls.d.stop)
        with open(os.path.join(ROOT, "runtime", "evaluate", "prose.txt")) as f:
            status, a = cls.d.post("/tokenize", {"text": f.read(6000)})
        assert status == 200
        cls.ids = a["ids"]
        status, a = cls.d.post("/api/v1/policies/release/activate", {"source": HOLD}, headers={"If-Match": "*"})
        assert status == 200, a

    def verb(self, rollout, verb):
        now = self.d.get(f"/api/v1/rollouts/{rollout}")[1]
        return self.d.post(f"/api/v1/rollouts/{rollout}/{verb}", {"reason": "test"}, headers={"If-Match": str(now["version"])})

    def advance(self, rollout, stage):
        self.d.wait_until(lambda: self.verb(rollout, "advance")[0] == 200)
        self.assertEqual(self.d.get(f"/api/v1/rollouts/{rollout}")[1]["stage"], stage)

    def create(self, name, params):
        body = {"name": name, "pipeline": name, "params": params, "contract": "approximate",
                "steps": [{"stage": "SHADOW", "fraction": 0, "min_seconds": 0}, {"stage": "CANARY", "fraction": 0.98, "min_seconds": 0}, {"stage": "RAMP", "fraction": 0.99, "min_seconds": 0}, {"stage": "FULL", "fraction": 1, "min_seconds": 0}],
                "gates": [{"metric": "omitted_mass", "threshold": 0.97, "min_n": 20}, {"metric": "output_error", "threshold": 0.97, "min_n": 20}]}

        def created():  # as soon as the last one's sequences are back on the baseline
            status, r = self.d.post("/api/v1/rollouts", body)
            self.assertIn(status, (201, 409), r)
            return r.get("id")

        return self.d.wait_until(created)

    def exact(self, ids, n):
        a = self.d.complete(ids, max_tokens=n, logprobs=1, ignore_eos=True)
        self.assertEqual(a["kvasir"]["published_contract"], "exact")
        l = a["choices"][0]["logprobs"]
        return l["token_ids"], l["token_logprobs"]

    def generate(self, prompt, rollout):
        """Approximate until AT_LEAST tokens are there, then a rollback, then AFTER tokens more: (ids, logprobs, contracts, request)."""
        ids, logprobs, contracts, request, rolled = [], [], [], None, False
        body = {"prompt": prompt, "temperature": 0, "max_tokens": 3000, "logprobs": 1, "ignore_eos": True, "kvasir": {"contract": "approximate", "session": f"s-{rollout}"}}
        events = self.d.stream("/v1/completions", body)
        for e in events:
            if e == "[DONE]":
                break
            self.assertNotIn("error", e)
            request = e["kvasir"]["receipt_id"]
            l = e["choices"][0]["logprobs"] if e["choices"] else None
            if l:
                ids += l["token_ids"]
                logprobs += l["token_logprobs"]
                contracts += [e["kvasir"]["published_contract"]] * len(l["token_ids"])
            if len(ids) >= AT_LEAST and not rolled:
                self.assertIn("approximate", contracts, "the candidate did not serve it, or left nothing out")
                status, a = self.d.post(f"/api/v1/rollouts/{rollout}/rollback", {"reason": "test"})
                self.assertTrue(status == 200 and a["rollback"]["fenced"] and a["rollback"]["durable"], a)
                rolled = True
            if rolled and contracts[-AFTER:] == ["exact"] * AFTER:
                break
        events.close()
        return ids, logprobs, contracts, request

    def to_canary(self, name, prompt):
        rollout = self.create(name, METHODS[name])
        self.assertGreater(self.d.get(f"/api/v1/rollouts/{rollout}")[1]["byte_cost"], 0)
        self.advance(rollout, "SHADOW")
        status, a = self.d.post("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 80, "ignore_eos": True, "kvasir": {"contract": "approximate"}})
        self.assertEqual((status, a["kvasir"]["published_contract"]), (200, "exact"), "a shadow served")
        self.advance(rollout, "CANARY")
        return rollout

    def run_method(self, name):
        prompt = self.ids[:150]
        rollout = self.to_canary(name, prompt)
        ids, logprobs, contracts, request = self.generate(prompt, rollout)
        frontier = len(contracts) - contracts[::-1].index("approximate")
        self.assertGreaterEqual(frontier, AT_LEAST - 1)
        self.assertNotIn("exact", contracts[contracts.index("approximate"):frontier], "a tainted sequence called itself exact")
        self.assertEqual((ids[frontier:], logprobs[frontier:]), self.exact(prompt + ids[:frontier], len(ids) - frontier), "the continuation is not the exact run's")
        segments = self.d.wait_until(lambda: self.d.get(f"/api/v1/receipts?kind=PUBLICATION&request={request}")[1]["receipts"])
        served = [r for r in segments if r["rows_total"]]
        self.assertTrue(served, segments)
        self.assertEqual({r["published"] for r in served}, {"approximate"})
        self.assertTrue(all(r["rows"] < r["rows_total"] and r["value"] > 0 for r in served), served)
        self.assertEqual(any(r["bytes"] for r in served), name == "infinigen", "only a rehearsal knows rows ahead")
        self.assertEqual(self.d.get(f"/api/v1/rollouts/{rollout}")[1]["stage"], "EXACT_BASELINE")

    def test_what_a_policy_keeps_back_is_receipted(self):
        with open(os.path.join(ROOT, "policies", "admission.lua")) as f:
            self.addCleanup(self.d.post, "/api/v1/policies/admission/activate", {"source": f.read()}, headers={"If-Match": "*"})
        rollout = self.to_canary("quest", self.ids[:150])
        for cause, source in (("DEADLINE", KEEP_BACK % "DEADLINE"), ("CREDIT_PRESSURE", KEEP_BACK % "CREDIT_PRESSURE")):
            self.assertEqual(self.d.post("/api/v1/policies/admission/activate", {"source": source}, headers={"If-Match": "*"})[0], 200)
            a = self.d.complete(self.ids[:150], max_tokens=4, kvasir={"contract": "approximate", "session": f"s-{rollout}"})
            self.assertEqual((a["kvasir"]["pipeline"], a["kvasir"]["published_contract"]), ("resident", "exact"))
            found = self.d.get(f"/api/v1/receipts?kind=FALLBACK&request={a['kvasir']['receipt_id']}")[1]["receipts"]
            self.assertEqual([r["reason"] for r in found], [cause])
        self.assertEqual(self.d.post(f"/api/v1/rollouts/{rollout}/rollback", {"reason": "test"})[0], 200)

    def test_quest(self):
        self.run_method("quest")

    def test_sparq(self):
        self.run_method("sparq")

    def test_infinigen(self):
        self.run_method("infinigen")

    def test_pqcache(self):
        self.run_method("pqcache")

    def test_infllm(self):
        self.run_method("infllm")

    def test_clusterkv(self):
        self.run_method("clusterkv")

    def test_magicpig(self):
        self.run_method("magicpig")


if __name__ == "__main__":
    unittest.main()
