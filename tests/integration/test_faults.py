"""The failure lab on the real daemon: every fault is run and checked, strikes nobody who was not named, and is refused where it must be."""
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import unittest

from support import KVASIR, Daemon, environment, free_port

QUEST = {"name": "lab", "pipeline": "quest", "params": {"budget_rows": 64}, "contract": "approximate", "cohort": {"headers": ["x-lab=yes"]},
         "steps": [{"stage": "SHADOW", "min_seconds": 0}, {"stage": "CANARY", "fraction": 0.9, "min_seconds": 600},
                   {"stage": "RAMP", "fraction": 0.95, "min_seconds": 600}, {"stage": "FULL"}],
         "gates": [{"metric": "omitted_mass", "threshold": 0.95}, {"metric": "output_error", "threshold": 0.95}]}
MEMBER = {"X-Lab": "yes"}
LONG = "The magic number is seven hundred and twelve. " * 8


def kvasir(d, *args, timeout=120):
    return subprocess.run([KVASIR, "--url", d.url, *args], capture_output=True, text=True, timeout=timeout, env=environment())


def canary(d):
    """A quest rollout at CANARY."""
    status, r = d.post("/api/v1/rollouts", QUEST)
    assert status == 201, r
    path = f"/api/v1/rollouts/{r['id']}"
    for i in range(400):
        now = d.get(path)[1]
        if now["stage"] == "CANARY":
            return r["id"]
        if now["stage"] == "OFF":
            d.post(path + "/advance", {"reason": "test"}, headers={"If-Match": str(now["version"])})
        status, a = d.post("/v1/completions", {"prompt": LONG + str(i), "max_tokens": 16, "temperature": 0, "kvasir": {"contract": "approximate", "session": f"s{i}"}}, headers=MEMBER)
        assert status == 200, a
    raise AssertionError(now)


class Runs(unittest.TestCase):
    def setUp(self):
        self.state, self.tier = tempfile.mkdtemp(prefix="kvasir-faults-"), tempfile.mkdtemp(prefix="kvasir-tier-")
        for folder in (self.state, self.tier):
            self.addCleanup(shutil.rmtree, folder, ignore_errors=True)

    def daemon(self, *more):
        return Daemon("--set", "faults.enabled=true", "--set", f"tiers.disk.path={self.tier}", "--set", "tiers.disk.capacity_bytes=64MiB", "--set", "tiers.disk.reserve_bytes=16MiB",
                      "--set", "shadow.fraction=1", *more, state=self.state)

    def test_every_fault_leads_to_its_typed_outcome(self):
        port = free_port()
        d = self.daemon("--listen", f"127.0.0.1:{port}")
        rollout = canary(d)
        self.strike_the_canary(d, rollout)
        done = kvasir(d, "fault", "run", "all")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        listed = d.get("/api/v1/faults")[1]
        names = [f["name"] for f in listed["faults"]]
        self.assertEqual(len(names), 19)
        for f in listed["faults"]:
            if f["name"] == "kill":
                continue
            self.assertTrue(f["last"]["pass"], f)
            self.assertFalse(f["armed"])
            checked = {c["what"] for c in f["last"]["checks"]}
            if f["name"] != "remote_timeout":
                self.assertLessEqual({"strikes", "answer", "publication", "counters", "credits", "receipt"}, checked, f["name"])
                self.assertGreater(f["hits"], 0)
        live = d.get("/api/v1/status")[1]["live"]
        self.assertEqual((live["exact_mismatches"], live["illegal_fallbacks"]), (0, 0))
        self.what_was_selected_before_a_fault_is_kept(d)
        self.the_gates_saw_nothing_of_it(d, rollout)
        audit = [a["detail"] for a in d.get("/api/v1/audit?limit=200")[1]["receipts"]]
        self.assertTrue(any(a.startswith("fault run bit_flip: PASS") for a in audit))
        self.assertTrue(any(a.startswith("POST /api/v1/faults/bit_flip/run: 200") for a in audit))
        # Somebody starts it again when it is gone.
        again = []

        def restart():
            d.process.wait()
            d.kill()
            again.append(self.daemon("--listen", f"127.0.0.1:{port}"))

        keeper = threading.Thread(target=restart)
        keeper.start()
        done = kvasir(d, "--json", "fault", "run", "kill")
        keeper.join()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual([c["what"] for c in json.loads(done.stdout)["last"]["checks"]], ["killed", "restart", "answer", "chain"])
        self.assertEqual(again[0].stop(), 0)

    def what_was_selected_before_a_fault_is_kept(self, d):
        """The receipt names the digest of a recording; API and command line show it, and one that was changed on disk is refused."""
        named = [r for r in d.get("/api/v1/receipts?kind=FALLBACK&reason=IDENTITY_MISMATCH&limit=1000")[1]["receipts"] if r["digest"]]
        self.assertTrue(named)
        receipt, path = named[0]["id"], os.path.join(self.state, "flights", named[0]["digest"])
        status, whole = d.get(f"/api/v1/receipts/{receipt}/flight")
        self.assertEqual((status, whole["digest"]), (200, named[0]["digest"]))
        last = whole["flight"][-1]
        self.assertEqual((last["status"], last["action"], last["rows"], last["support"], last["request"]), ("IDENTITY_MISMATCH", "FULL_EXACT_FETCH", last["frontier"], None, named[0]["request"]))
        self.assertEqual(d.get(f"/api/v1/receipts/{receipt}")[1]["flight"], whole["flight"][-32:])
        shown = kvasir(d, "flight", str(receipt)).stdout
        self.assertEqual(shown.count("IDENTITY_MISMATCH"), sum(f["status"] == "IDENTITY_MISMATCH" for f in whole["flight"]))
        live = json.loads(kvasir(d, "--json", "flight", "--limit", "3").stdout)["flight"]
        self.assertEqual([f["order"] for f in live], sorted(f["order"] for f in live))
        self.assertEqual(len(live), 3)
        counts = d.get("/api/v1/status")[1]["live"]["fallbacks"]
        self.assertGreater(min(counts["full"], counts["index_stale"], counts["budget_exceeded"]), 0)
        self.assertIn(f"kvasir_index_stale_total {counts['index_stale']}\n", d.request("GET", "/metrics")[2].decode())
        with open(path, "rb") as f:
            self.assertEqual(hashlib.sha256(f.read()).hexdigest(), named[0]["digest"])
        with open(path, "r+b") as f:
            f.write(b"\xff")
        self.assertEqual(d.get(f"/api/v1/receipts/{receipt}/flight")[1]["error"]["code"], "CHECKSUM_MISMATCH")
        self.assertNotIn("flight", d.get(f"/api/v1/receipts/{receipt}")[1])
        other = d.get("/api/v1/receipts?kind=REQUEST&limit=1")[1]["receipts"][0]["id"]
        self.assertEqual(d.get(f"/api/v1/receipts/{other}/flight")[1]["error"]["code"], "NOT_FOUND")
        self.assertEqual(d.get("/api/v1/flight?limit=0")[1]["error"]["code"], "BAD_ARGUMENT")
        self.assertEqual(d.get("/api/v1/flight?request=seven")[1]["error"]["param"], "request")

    def the_gates_saw_nothing_of_it(self, d, rollout):
        of_the_lab = {r["request"] for t in ("failure-lab", "failure-lab-reference") for r in d.get(f"/api/v1/receipts?kind=REQUEST&tenant={t}&limit=1000")[1]["receipts"]}
        self.assertGreater(len(of_the_lab), 20)
        status, _, lines = d.request("GET", f"/api/v1/rollouts/{rollout}/samples")
        judged = {json.loads(line).get("request") for line in lines.splitlines()}
        self.assertEqual(status, 200)
        self.assertTrue(judged)
        self.assertFalse(judged & of_the_lab)

    def strike_the_canary(self, d, rollout):
        """Armed on the rollout, a fault meets what its candidate serves: not exact requests, which are the baseline's."""
        hits = lambda: [f["hits"] for f in d.get("/api/v1/faults")[1]["faults"] if f["name"] == "policy_fault"][0]
        status, armed = d.post("/api/v1/faults/policy_fault", {"scope": {"rollout": rollout}})
        self.assertEqual((status, armed["scope"]), (200, {"rollout": rollout}), armed)
        for i in range(8):
            d.complete(LONG, max_tokens=2, kvasir={"session": f"exact-{i}"})
        self.assertEqual(hits(), 0)
        for i in range(40):
            d.post("/v1/completions", {"prompt": LONG, "max_tokens": 2, "temperature": 0, "kvasir": {"session": f"canary-{i}", "contract": "approximate"}}, headers=MEMBER)
            if hits():
                break
        self.assertEqual(hits(), 1)
        d.wait_until(lambda: [r for r in d.get("/api/v1/receipts?kind=POLICY_FAULT")[1]["receipts"] if "injected" in r["detail"]])

    def test_a_fault_that_does_not_strike_fails_its_run(self):
        """A device tier too small for one layer moves nothing, so no fault in moving can strike."""
        with Daemon("--set", "faults.enabled=true", "--set", "tiers.device.capacity_bytes=65536") as d:
            done = kvasir(d, "--json", "fault", "run", "completion_after_cancel")
            self.assertEqual(done.returncode, 1, done.stdout)
            checks = {c["what"]: c["pass"] for c in json.loads(done.stdout)["last"]["checks"]}
            self.assertEqual((checks["strikes"], checks["receipt"], checks["answer"]), (False, False, True))

    def test_what_is_not_there_is_refused_with_a_hint(self):
        with Daemon("--set", "faults.enabled=true") as d:
            for name, code, says in (("bit_flip", "UNSUPPORTED", "tiers.disk.path"), ("index_before_row", "CONFLICT", "CANARY"), ("kill", "CONFLICT", "from outside")):
                status, e = d.post(f"/api/v1/faults/{name}/run")
                self.assertEqual((status >= 400, e["error"]["code"]), (True, code), name)
                self.assertIn(says, e["error"]["message"] + e["error"]["hint"] + e["error"]["param"])


class Arming(unittest.TestCase):
    def arm(self, d, name, scope, **more):
        return d.post(f"/api/v1/faults/{name}", {"scope": scope, **more})

    def refused(self, d, code, name, scope, **more):
        status, e = self.arm(d, name, scope, **more)
        self.assertEqual((status >= 400, e["error"]["code"]), (True, code), e)
        self.assertTrue(e["error"]["message"])
        return e["error"]

    def hits(self, d, name):
        return [f["hits"] for f in d.get("/api/v1/faults")[1]["faults"] if f["name"] == name][0]

    def ask(self, d, session, **headers):
        return d.complete(LONG, max_tokens=8, kvasir={"session": session})["choices"][0]["text"]

    def test_bad_input_is_typed(self):
        with Daemon("--set", "faults.enabled=true") as d:
            self.assertIn("scope", self.refused(d, "BAD_ARGUMENT", "bit_flip", {})["param"])
            self.refused(d, "NOT_FOUND", "no_such", {"tenant": "a"})
            self.refused(d, "BAD_ARGUMENT", "bit_flip", {"tenant": "a"}, count=0)
            self.refused(d, "BAD_ARGUMENT", "bit_flip", {"tenant": "a"}, count=1000001)
            self.refused(d, "BAD_ARGUMENT", "bit_flip", {"tenant": "a"}, count=1.5)
            self.refused(d, "BAD_ARGUMENT", "bit_flip", {"session": "s"})
            self.refused(d, "BAD_ARGUMENT", "bit_flip", {"tenant": "a" * 64})
            self.refused(d, "BAD_ARGUMENT", "bit_flip", {"rollout": "seven"})
            self.refused(d, "BAD_ARGUMENT", "policy_fault", {"tenant": "a", "session": "s"})
            self.refused(d, "UNKNOWN_KEY", "bit_flip", {"tenant": "a", "klass": "b"})
            self.refused(d, "UNKNOWN_KEY", "bit_flip", {"tenant": "a"}, times=3)
            self.refused(d, "CONFLICT", "bit_flip", {"rollout": "r_000001"})
            self.refused(d, "UNSUPPORTED", "remote_timeout", {"tenant": "a"})
            self.assertEqual(self.arm(d, "bit_flip", {"tenant": "a"})[0], 200)
            self.assertIn("disarm", self.refused(d, "CONFLICT", "bit_flip", {"tenant": "a"})["hint"])
            self.assertEqual(kvasir(d, "fault", "disarm", "bit_flip").returncode, 0)
            self.assertEqual(kvasir(d, "fault", "arm").returncode, 2)
            self.assertEqual([f["name"] for f in d.get("/api/v1/faults")[1]["faults"] if f["armed"]], [])
            self.assertTrue(any("DELETE /api/v1/faults/bit_flip: 200" in a["detail"] for a in d.get("/api/v1/audit")[1]["receipts"]))

    def test_it_is_off_unless_somebody_turned_it_on(self):
        with Daemon() as d:
            self.assertFalse(d.get("/api/v1/faults")[1]["enabled"])
            self.assertIn("faults.enabled", self.refused(d, "UNSUPPORTED", "bit_flip", {"tenant": "local"})["param"])
            self.assertEqual(d.post("/api/v1/faults/bit_flip/run")[1]["error"]["code"], "UNSUPPORTED")

    def test_nobody_else_meets_it(self):
        with Daemon("--set", "faults.enabled=true") as d:
            plain = self.ask(d, "before")
            done = kvasir(d, "fault", "arm", "block_reuse_before_callback", "--tenant", "local", "--session", "mine", "--count", "2")
            self.assertEqual(done.returncode, 0, done.stderr)
            armed = d.get("/api/v1/status")[1]["faults"]
            self.assertIn("\nkvasir_faults_armed 1\n", d.get("/metrics")[1])
            self.assertIn("  FAULTS ARMED\n", kvasir(d, "status").stdout)
            self.assertEqual([(f["name"], f["scope"]) for f in armed["armed"]], [("block_reuse_before_callback", {"tenant": "local", "session": "mine"})])
            self.assertEqual(self.ask(d, "other"), plain)
            self.assertEqual(self.hits(d, "block_reuse_before_callback"), 0)
            self.assertEqual(self.ask(d, "mine"), plain)
            self.assertEqual(self.hits(d, "block_reuse_before_callback"), 2)
            self.assertEqual(d.get("/api/v1/status")[1]["faults"]["armed"], [], "its count is used up")
            self.assertIn('\nkvasir_fault_hits_total{fault="block_reuse_before_callback"} 2\n', d.get("/metrics")[1])

    def test_a_tournament_does_not_measure_the_lab(self):
        with Daemon("--set", "faults.enabled=true") as d:
            self.assertEqual(d.post("/api/v1/tournament", {"pipelines": ["quest", "pqcache"], "fraction": 0.05})[0], 201)
            done = kvasir(d, "fault", "run", "delayed_completion")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            status, _, raw = d.request("DELETE", "/api/v1/tournament")
            seen = json.loads(raw)["tournament"]
            self.assertEqual((status, seen["units"], seen["dropped"]), (200, 0, 0))

    def test_arming_needs_the_right(self):
        tokens = [{"name": n, "sha256": hashlib.sha256(n.encode()).hexdigest(), "rights": [n]} for n in ("viewer", "operator", "infer")]
        with Daemon(config={"auth": {"mode": "token", "tokens": tokens}, "faults": {"enabled": True}}, wait=False) as d:
            d.port = int(d.wait_line(r"serves .* on https?://[^/]*:(\d+)/").group(1))
            body = {"scope": {"tenant": "acme"}}
            for name, status in (("viewer", 403), ("infer", 403), ("operator", 200)):
                self.assertEqual(d.post("/api/v1/faults/bit_flip", body, headers={"Authorization": f"Bearer {name}"})[0], status)
            self.assertEqual(d.request("DELETE", "/api/v1/faults/bit_flip", headers={"Authorization": "Bearer viewer"})[0], 403)


if __name__ == "__main__":
    unittest.main()
