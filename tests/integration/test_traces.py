"""Requests named by their headers: cohorts by header, and the caller's trace in receipts, answers and logs."""
import json
import os
import pathlib
import subprocess
import tarfile
import tempfile
import unittest

import support

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


class TraceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = support.Daemon("--set", "log.level=debug")

    @classmethod
    def tearDownClass(cls):
        assert cls.d.stop() == 0

    def complete(self, headers, d=None, **kvasir):
        body = {"prompt": "One", "max_tokens": 3, "temperature": 0, "kvasir": kvasir}
        status, answer, text = (d or self.d).request("POST", "/v1/completions", body, headers=headers)
        return status, answer, json.loads(text)

    def test_a_trace_is_echoed_receipted_logged_and_found(self):
        d = self.d
        status, headers, answer = self.complete({"traceparent": PARENT})
        self.assertEqual((status, headers.get("traceparent"), answer["kvasir"]["trace_id"]), (200, PARENT, TRACE))
        request = answer["kvasir"]["receipt_id"]
        found = d.wait_until(lambda: d.get(f"/api/v1/receipts?trace={TRACE}")[1]["receipts"])
        self.assertEqual([(r["request"], r["kind"], r["trace"]) for r in found], [(request, "REQUEST", TRACE)])
        self.assertTrue(found[0]["digest"].startswith(TRACE + "00f067aa0ba902b7"))
        self.assertGreater(len(d.get(f"/api/v1/receipts?request={request}")[1]["receipts"]), 1)
        self.assertTrue(d.get("/api/v1/receipts/verify")[1]["verified"])
        line = next(json.loads(x) for x in d.err if "/v1/completions" in x and TRACE in x)
        self.assertEqual(line["trace"], TRACE)
        p = subprocess.run([support.KVASIR, "--url", d.url, "receipts", "find", "--trace", TRACE], capture_output=True, text=True, timeout=60)
        self.assertIn(request, p.stdout)
        self.assertEqual(d.get("/api/v1/receipts?trace=xyz")[1]["error"]["code"], "BAD_ARGUMENT")

    def test_what_is_no_traceparent_is_none(self):
        for bad in ("", "00", PARENT.upper(), PARENT.replace("00-", "ff-", 1), f"00-{'0' * 32}-00f067aa0ba902b7-01", f"00-{TRACE}-{'0' * 16}-01", PARENT + "-x", PARENT[:-1] + "g", "x" * 4000):
            status, headers, answer = self.complete({"traceparent": bad})
            self.assertEqual((status, "traceparent" in headers, "trace_id" in answer["kvasir"]), (200, False, False), bad[:60])
        status, headers, _ = self.complete({"traceparent": "01" + PARENT[2:] + "-later"})
        self.assertEqual((status, headers.get("traceparent")), (200, "01" + PARENT[2:]), "a later version is read as this one")

    def test_values_of_headers_are_compared_and_kept_nowhere(self):
        with tempfile.TemporaryDirectory() as state:
            with support.Daemon("--set", "log.level=debug", state=state) as d:
                _, made = d.post("/api/v1/rollouts", {"name": "by-header", "pipeline": "layerwise", "cohort": {"headers": ["x-team=blue-1144"]}})
                for value in ("green-7731", "blue-1144"):
                    headers = {"X-Team": value, "X-Api-Key": "key-4417", "Cookie": "cookie-9182"}
                    self.assertEqual(self.complete(headers, d, session="s")[0], 200)
                    self.assertEqual(d.request("GET", "/api/v1/nothing", headers=headers)[0], 404)
                bundle = os.path.join(state, "bundle.tar.gz")
                p = subprocess.run([support.KVASIR, "--url", d.url, "bundle", "--out", bundle], capture_output=True, text=True, timeout=60)
                self.assertEqual(p.returncode, 0, p.stderr)
                logged = "".join(d.err)
            with tarfile.open(bundle) as t:
                kept = {m.name: t.extractfile(m).read() for m in t.getmembers() if m.isfile()}
            kept |= {f.name: f.read_bytes() for f in pathlib.Path(state).iterdir() if f.is_file()}
            kept["log"] = logged.encode()
            for secret in (b"green-7731", b"key-4417", b"cookie-9182"):
                self.assertEqual([name for name, data in kept.items() if secret in data], [], secret)
            self.assertTrue(any(b"blue-1144" in data for data in kept.values()), "what the manifest names is kept with it")
            self.assertNotIn("blue-1144", logged)

    def by_name(self, d):
        """Whoever operates may name what is rolled out, in no cohort and without a session; the admission policy has its say all the same."""
        def generate(*args):
            p = subprocess.run([support.KVASIR, "--url", d.url, "--json", "generate", "--text", "The quick brown fox", "--steps", "4", *args], capture_output=True, text=True, timeout=60)
            return json.loads(p.stdout)["kvasir"]["pipeline"] if p.returncode == 0 else p.stderr
        self.assertEqual([generate(), generate("--pipeline", "layerwise"), generate("--pipeline", "resident")], ["resident", "layerwise", "resident"])
        self.assertIn("UNSUPPORTED: quest is not what is rolled out", generate("--pipeline", "quest"))
        self.assertIn("go with --model", generate("--threads", "1"))
        policy = d.get("/api/v1/policies")[1]["policies"]
        version = next(p["version"] for p in policy if p["kind"] == "admission")
        for word, want in (('"resident"', "resident"), ("r.placement", "layerwise"), ('r.max_tokens == 4 and "nowhere" or nil', "layerwise")):  # the last is a fault, and answered as without a policy
            source = f'return {{ api = 1, name = "placed", admission = function(r) return {{ action = "ADMIT_TRANSFER", placement = {word} }} end }}'
            status, answer = d.post("/api/v1/policies/admission/activate", {"source": source}, headers={"If-Match": version})
            self.assertEqual(status, 200, answer)
            version = answer["version"]
            self.assertEqual(generate("--pipeline", "layerwise"), want, word)
        status, answer = d.post("/api/v1/policies/admission/activate", {"source": source.replace("r.max_tokens == 4 and", "")}, headers={"If-Match": version})
        self.assertEqual((status, answer["error"]["code"]), (400, "POLICY_SHAPE"))  # one that always says so is not activated
        d.wait_until(lambda: [r for r in d.get("/api/v1/receipts?kind=POLICY_FAULT")[1]["receipts"] if "'nowhere' is no placement" in r["detail"]])

    def test_a_cohort_by_header(self):
        steps = [{"stage": "SHADOW", "min_seconds": 0}, {"stage": "CANARY", "fraction": 0.999999, "min_seconds": 600}, {"stage": "RAMP", "fraction": 0.9999999}, {"stage": "FULL"}]
        base = {"name": "by-header", "pipeline": "layerwise", "steps": steps}
        with tempfile.TemporaryDirectory() as state:
            with support.Daemon(state=state) as d:
                for bad in ("x-team", "=blue", "x team=blue", "x-team=", "x-team=a b", "Cookie=secret", "authorization=Bearer", "api-key=secret", "x" * 64 + "=a", "a=" + "x" * 64, 7):
                    status, answer = d.post("/api/v1/rollouts", {**base, "cohort": {"headers": [bad]}})
                    self.assertEqual((status, answer["error"]["param"]), (400, "cohort.headers"), bad)
                status, made = d.post("/api/v1/rollouts", {**base, "cohort": {"headers": ["X-Team=blue", "x-team=green"]}})
                self.assertEqual((status, made["cohort"]["headers"]), (201, ["x-team=blue", "x-team=green"]))
                path = f"/api/v1/rollouts/{made['id']}"
                for _ in range(200):  # shadow needs units, and they come from anybody's traffic
                    if d.get(path)[1]["stage"] == "CANARY":
                        break
                    d.complete("The quick brown fox", max_tokens=64, ignore_eos=True)
                for team in ("blue", "green", "Blue", None):
                    self.assertEqual(self.complete({"X-Team": team} if team else {}, d, session=f"s-{team}")[0], 200)
                arm = {s["session"]: s["arm"] for s in d.get("/api/v1/sessions")[1]["sessions"]}
                self.assertEqual([arm[f"s-{t}"] for t in ("blue", "green", "Blue", None)], ["candidate", "candidate", "outside", "outside"])
                self.by_name(d)
            with support.Daemon(state=state) as d:  # the same cohort after a restart
                again = d.get(path)[1]
                self.assertEqual((again["cohort"]["headers"], again["manifest"], again["stage"]), (["x-team=blue", "x-team=green"], made["manifest"], "CANARY"))


if __name__ == "__main__":
    unittest.main()
